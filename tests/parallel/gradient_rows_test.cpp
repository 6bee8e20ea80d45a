// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Sums of gradients of a table whose blocks add to few of its rows, to many, write all of it, or
// first the one and then the other: on some ranks, in some micro-batches.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/philox.h"
#include "tessera/comm/world.h"
#include "tessera/memory/ledger.h"
#include "tessera/models/gpt2.h"
#include "tessera/parallel/gradient_reduction.h"
#include "tessera/tensor/row_sum.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kRows = 64, kWidth = 32;
constexpr int kSteps = 4;

models::Gpt2Shape tiny(bool tied) {
  models::Gpt2Shape shape;
  shape.num_layers = 1;
  shape.hidden_size = kWidth;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = kRows;
  shape.max_positions = 8;
  shape.tie_embeddings = tied;
  return shape;
}

/// How a block writes the table's gradient in one micro-batch.
class Use {
 public:
  enum class Kind { Few, Many, All, FewThenAll, AllThenFew, Nothing };
  static constexpr int kKinds = 6;

  Use(Kind kind, std::uint64_t key) : kind_(kind), random_{key} {}

  /// Into the sink, and onto a whole table.
  void write(GradSink& sink, const at::Tensor& whole) {
    if (kind_ == Kind::All || kind_ == Kind::AllThenFew) write_all(sink, whole);
    if (kind_ == Kind::Many) add_rows(sink, whole, 40);
    if (kind_ == Kind::Few || kind_ == Kind::FewThenAll || kind_ == Kind::AllThenFew)
      add_rows(sink, whole, 3);
    if (kind_ == Kind::FewThenAll) write_all(sink, whole);
  }

 private:
  /// Sums of such round.
  float number() {
    const auto words = random_(next_++);
    return (uniform_float(words[0]) - 0.5F) / (1.0F + uniform_float(words[2]));
  }

  void write_all(GradSink& sink, const at::Tensor& whole) {
    const at::Tensor grad = at::full({kRows, kWidth}, number());
    sink.write(grad);
    whole.add_(grad);
  }
  void add_rows(GradSink& sink, const at::Tensor& whole, int count) {
    for (int i = 0; i < count; ++i) {
      const auto row = static_cast<std::int64_t>(random_(next_++)[1] % kRows);
      const float value = number();
      whole[row].add_(value);
      if (RowSum* const rows = sink.rows()) {
        at::from_blob(rows->row(row), {kWidth}).add_(value);
        sink.written();
      } else {
        const at::Tensor grad = at::zeros({kRows, kWidth});
        grad[row].add_(value);
        sink.write(grad);
      }
    }
  }

  Kind kind_;
  Philox random_;
  std::uint64_t next_ = 0;
};

struct Case {
  int ranks, micros;
  bool tied;
  ReductionOptions reduction;
  /// The uses by the embedding; if empty, random ones.
  std::vector<Use::Kind> kinds = {};
  bool begins_with_rows = false;  ///< in the first micro-batch of a step, on every rank
  std::uint64_t seed = 99;
};

/// The sum of a block's gradients, added one after the other as a single rank would.
class DenseSum {
 public:
  DenseSum(const ReductionOptions& reduction, int ranks)
      : reduction_(reduction.mode),
        locally_(reduction.mode == Reduction::Once && reduction.stage < 2),
        own_(static_cast<std::size_t>(ranks)) {
    for (at::Tensor& own : own_)
      own = at::zeros({kRows, kWidth});
  }
  /// The tensor to which a rank's micro-batch is added.
  const at::Tensor& of(int rank) {
    at::Tensor& own = own_[static_cast<std::size_t>(rank)];
    if (!locally_) own.zero_();
    return own;
  }
  /// Called after a micro-batch of all ranks.
  void reduce(bool last) {
    if (locally_ && !last) return;
    at::Tensor all = at::zeros({kRows, kWidth});
    const at::Tensor& to = reduction_ == Reduction::Each ? sum_ : all;
    for (const at::Tensor& own : own_)
      to.add_(own);
    if (reduction_ == Reduction::Once) sum_.add_(all);
  }
  [[nodiscard]] const at::Tensor& sum() const { return sum_; }

 private:
  Reduction reduction_;
  bool locally_;
  std::vector<at::Tensor> own_;
  at::Tensor sum_ = at::zeros({kRows, kWidth});
};

/// Steps in which every rank, micro-batch and block uses the table in some way, against sums of
/// whole tables, to the bit.
void expect_sums(const Case& c) {
  comm::run_threads(c.ranks, [&](comm::World& world) {
    WeightOptions weights;
    weights.tables_apart = c.reduction.sparse_rows;
    ModelInstance model(models::gpt2(tiny(c.tied)), weights, world);
    ReductionOptions options = c.reduction;
    options.max_micros = c.micros;
    GradientReduction reduction(world, model, options);
    const auto kind_of = [&](std::uint64_t key, int block, int micro) {
      const std::uint32_t drawn = Philox{c.seed}(key)[2];
      if (block == 0 && micro == 0 && c.begins_with_rows) return Use::Kind::Few;
      if (block == 0 && !c.kinds.empty()) return c.kinds[drawn % c.kinds.size()];
      return static_cast<Use::Kind>(drawn % Use::kKinds);
    };
    for (int step = 0; step < kSteps; ++step) {
      // Every rank knows what all of them do.
      std::map<int, DenseSum> sums;  // by block
      const std::vector<Action> actions = accumulation_schedule(c.micros);
      reduction.begin(actions);
      for (const Action& action : actions) {
        if (action.kind != ActionKind::Backward) continue;
        for (int b = model.num_blocks() - 1; b >= 0; --b) {
          const BlockRun run{b, action.micro, c.micros};
          reduction.before(action, run);
          for (const auto& param : model.params(b)) {
            if (param->info().name != "wte.weight") continue;
            DenseSum& sum = sums.try_emplace(b, options, c.ranks).first->second;
            for (int rank = 0; rank < c.ranks; ++rank) {
              const auto key =
                  static_cast<std::uint64_t>(((step * 8 + action.micro) * 8 + rank) * 8 + b);
              Use use(kind_of(key, b, action.micro), key);
              GradSink elsewhere;
              elsewhere.open(at::empty({kRows, kWidth}));
              use.write(rank == world.rank() ? param->grad() : elsewhere, sum.of(rank));
            }
            sum.reduce(action.micro + 1 == c.micros);
          }
          reduction.after(action, run);
        }
      }
      reduction.finish();
      at::Tensor expected = at::zeros({kRows, kWidth});
      for (const auto& [block, sum] : sums)
        expected += sum.sum();
      for (std::size_t g = 0; g < model.groups().size(); ++g) {
        const FlatGroup& group = model.groups()[g];
        const Segment& segment = group.layout.segments().front();
        if (segment.info->name != "wte.weight") continue;
        const std::int64_t begin = group.layout.shard_begin(world.rank()),
                           numel = segment.within(begin, begin + group.layout.shard_numel()).numel;
        EXPECT_TRUE(at::equal(reduction.shard(static_cast<int>(g)).narrow(0, 0, numel),
                              expected.flatten().narrow(0, begin, numel)))
            << "rank " << world.rank() << " step " << step;
      }
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
}

void expect_all_sums(const std::vector<Use::Kind>& kinds, const std::vector<int>& all = {1, 3}) {
  for (const int ranks : {1, 2, 3}) {
    for (const int micros : all) {
      for (const int stage : {1, 2}) {
        for (const Reduction mode : {Reduction::Each, Reduction::Once}) {
          for (const bool tied : {true, false}) {
            for (const bool sparse : {true, false}) {
              SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(micros) +
                           " micro-batches, stage " + std::to_string(stage) +
                           (mode == Reduction::Once ? ", once" : ", each") +
                           (tied ? ", tied" : "") + (sparse ? ", sparse" : ""));
              expect_sums({ranks,
                           micros,
                           tied,
                           {.stage = stage, .mode = mode, .sparse_rows = sparse},
                           kinds});
            }
          }
        }
      }
    }
  }
}

TEST(GradientRows, OfAnEmbeddingAreAddedToTheWholeSum) {
  expect_all_sums({Use::Kind::Few});
}

TEST(GradientRows, BecomeAWholeTableWhereTheyAreMany) {
  expect_all_sums({Use::Kind::Few, Use::Kind::Many, Use::Kind::Nothing});
}

// Each micro-batch has few rows.
TEST(GradientRows, BecomeAWholeTableWhereTheirSumOverMicroBatchesIsMany) {
  expect_all_sums({Use::Kind::Few}, {8});
}

TEST(GradientRows, BecomeAWholeTableWhereABlockWritesAllOfIt) {
  expect_all_sums({});
}

// If one rank wrote more rows, the other ranks learn it when they reduce.
TEST(GradientRows, BecomeAWholeTableBehindRowsOfAnEarlierMicroBatch) {
  for (const int ranks : {1, 2, 3}) {
    for (const Reduction mode : {Reduction::Each, Reduction::Once}) {
      for (const int stage : {1, 2}) {
        for (std::uint64_t seed = 0; seed < 8; ++seed) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage) +
                       (mode == Reduction::Once ? ", once" : ", each") + ", seed " +
                       std::to_string(seed));
          expect_sums({ranks,
                       3,
                       /*tied=*/true,
                       {.stage = stage, .mode = mode},
                       {},
                       /*begins_with_rows=*/true,
                       seed});
        }
      }
    }
  }
}

// Every micro-batch has other rows, and all of them more than half of the table: as rows they would
// need as much as two tables, and three while they grow.
TEST(GradientRows, NeedNoMoreThanTheTableAndAMicroBatch) {
  constexpr std::int64_t kManyRows = 4160, kAtATime = 416;
  constexpr int kMicros = 10;
  for (const int ranks : {1, 2}) {
    for (const Reduction mode : {Reduction::Each, Reduction::Once}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks");
      comm::run_threads(ranks, [&](comm::World& world) {
        models::Gpt2Shape shape = tiny(true);
        shape.vocab_size = kManyRows;
        ModelInstance model(models::gpt2(shape), {}, world);
        GradientReduction reduction(world, model, {.mode = mode, .max_micros = kMicros});
        const auto bytes = [&] { return memory::current_ledger().usage().current; };
        const auto gradients = static_cast<std::size_t>(memory::Tag::Gradients);
        const std::int64_t before = bytes()[gradients];
        memory::current_ledger().reset_peak();
        const std::vector<Action> actions = accumulation_schedule(kMicros);
        reduction.begin(actions);
        for (const Action& action : actions) {
          if (action.kind != ActionKind::Backward) continue;
          const BlockRun run{0, action.micro, kMicros};
          reduction.before(action, run);
          for (const auto& param : model.params(0)) {
            if (!param->info().tied) continue;
            RowSum* const rows = param->grad().rows();
            // A rank's own sum may have become the table.
            ASSERT_TRUE(rows != nullptr || mode == Reduction::Once);
            if (rows == nullptr) continue;
            for (std::int64_t row = 0; row < kAtATime; ++row)
              *rows->row(action.micro * kAtATime + row) = 1.0F;
            param->grad().written();
          }
          reduction.after(action, run);
        }
        reduction.finish();
        const std::int64_t table = kManyRows * kWidth * 4,
                           peak = memory::current_ledger().usage().peak[gradients] - before;
        EXPECT_LT(peak, 2 * table) << "of a table of " << table;
        world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
      });
    }
  }
}

TEST(GradientRows, TakeNoWholeTable) {
  comm::run_threads(1, [](comm::World& world) {
    ModelInstance model(models::gpt2(tiny(true)), {}, world);
    GradientReduction reduction(world, model, {});
    const std::vector<Action> actions = accumulation_schedule(1);
    reduction.begin(actions);
    const BlockRun run{0, 0, 1};

    reduction.before(actions.back(), run);

    for (const auto& param : model.params(0))
      EXPECT_EQ(param->grad().rows() != nullptr, param->info().tied) << param->info().name;
  });
}

}  // namespace
}  // namespace tessera::parallel
