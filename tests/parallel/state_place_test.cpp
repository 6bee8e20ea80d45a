// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Masters and states give the same bits wherever they rest and however they are divided into units.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/models/gpt2.h"
#include "tessera/optim/average.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/sharded_optimizer.h"
#include "tessera/parallel/unit_buffers.h"

namespace tessera::parallel {
namespace {

constexpr std::int64_t kBlock = 4096;

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 2;
  shape.hidden_size = 40;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 72;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  return shape;
}

std::unique_ptr<optim::Rule> make_rule(const std::string& type) {
  config::Problems problems;
  config::Origins origins;
  return optim::rule_factory(type)(json::Value(), problems, origins);
}

/// Values that look random and depend on a name, an element and a number.
void noise(const std::string& name, int number, std::int64_t begin, std::int64_t end, float* out) {
  std::uint32_t seed = 17U + static_cast<std::uint32_t>(number);
  for (const char letter : name)
    seed = 31U * seed + static_cast<unsigned char>(letter);
  for (std::int64_t i = begin; i < end; ++i) {
    std::uint32_t x = (seed + static_cast<std::uint32_t>(i)) * 2654435761U;
    x = (x ^ (x >> 15U)) * 2246822519U;
    *out++ = static_cast<float>(x >> 8U) / static_cast<float>(1U << 24U) - 0.5F;
  }
}

/// One micro-batch on every rank; the gradients depend on rank and step.
void reduce_step(ModelInstance& model, GradientReduction& gradients, int number) {
  const std::vector<Action> actions = accumulation_schedule(1);
  gradients.begin(actions);
  for (int b = model.num_blocks() - 1; b >= 0; --b) {
    const BlockRun run{b, 0, 1};
    gradients.before(actions.back(), run);
    for (const auto& param : model.params(b)) {
      const at::Tensor gradient = at::empty(param->info().local_shape(), at::kFloat);
      noise(param->info().name, number, 0, gradient.numel(), gradient.data_ptr<float>());
      param->grad().write(gradient);
    }
    gradients.after(actions.back(), run);
  }
  gradients.finish();
}

/// How a training is done; `tier` is the name of a tier, or empty, and `weights` the same for the
/// working weights, in stage 3.
struct Setting {
  int ranks = 1, stage = 0;
  DType working = DType::F32;
  KeptTypes kept = {};
  std::string tier = {};
  std::int64_t unit_elements = std::numeric_limits<std::int64_t>::max();
  int buffers = 3;
  double share = 1.0;
  std::string weights = {};
  int weight_buffers = 3;
};

/// Bytes by name: every tensor of a save, whole, and the working weights.
using Result = std::map<std::string, std::vector<std::byte>>;

void add(const checkpoint::PieceBytes& piece, Result& out) {
  std::size_t numel = 1;
  for (const std::int64_t size : piece.shape)
    numel *= static_cast<std::size_t>(size);
  std::vector<std::byte>& bytes = out[piece.name];
  bytes.resize(numel * size_of(piece.dtype), std::byte{0xFF});
  const auto to = std::span(bytes).subspan(
      static_cast<std::size_t>(piece.piece.begin) * size_of(piece.dtype),
      static_cast<std::size_t>(piece.piece.end - piece.piece.begin) * size_of(piece.dtype));
  if (piece.source) {
    piece.source->read(0, to);
  } else {
    std::ranges::copy(piece.bytes, to.begin());
  }
}

/// A rank of a training.
class Trainee {
 public:
  Trainee(comm::World& world, const optim::Rule& rule, const Setting& setting)
      : rule_(rule),
        tier_(tier_of(setting.tier)),
        weight_tier_(tier_of(setting.weights)),
        model_(models::gpt2(tiny()), weights_of(setting, weight_tier_.get()), world),
        optimizer_(world,
                   model_,
                   rule,
                   setting.stage,
                   {},
                   setting.kept,
                   /*trained_alone=*/false,
                   {.tier = tier_.get(),
                    .unit_elements = setting.unit_elements,
                    .buffers = setting.buffers,
                    .share = setting.share}),
        gradients_(world, model_, {.stage = setting.stage}) {
    optimizer_.fill([](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
      noise(info.name, 0, begin, end, out);
    });
  }

  void steps(int from, int count) {
    for (int step = from; step < from + count; ++step) {
      optimizer_.wait_weights();
      reduce_step(model_, gradients_, step);
      optimizer_.update(gradients_,
                        {.lr = std::max(rule_.base_lr(), 1e-3), .grad_scale = 0.5, .step = step});
    }
    optimizer_.wait_weights();
  }

  void add_to(Result& out) {
    for (const checkpoint::PieceBytes& piece : optimizer_.pieces(/*for_save=*/true))
      add(piece, out);
    optimizer_.release_pieces();
  }
  void add_weights_to(Result& out) {
    for (std::size_t g = 0; g < model_.groups().size(); ++g) {
      WorkingWeights& weights = *model_.groups()[g].weights;
      weights.wait();
      const auto* const bytes = static_cast<const std::byte*>(weights.whole().data_ptr());
      out["working " + std::to_string(g)].assign(bytes, bytes + weights.whole().nbytes());
      weights.release();
    }
  }
  ShardedOptimizer& optimizer() { return optimizer_; }

 private:
  std::unique_ptr<memory::Tier> tier_of(const std::string& name) {
    const memory::TierOptions options{.folder = dir_.path().string(), .block_bytes = kBlock};
    return name.empty() ? nullptr : memory::tiers().get(name)(options);
  }
  static WeightOptions weights_of(const Setting& setting, memory::Tier* tier) {
    WeightOptions out;
    out.working = setting.working;
    if (setting.stage > 0) out.residency = Residency::Whole;
    if (setting.stage == 3) out.residency = Residency::Sharded;
    if (tier == nullptr) return out;
    out.residency = Residency::Resting;
    out.tier = tier;
    out.tier_buffers = setting.weight_buffers;
    return out;
  }

  const optim::Rule& rule_;
  files::TempDir dir_;
  std::unique_ptr<memory::Tier> tier_, weight_tier_;
  ModelInstance model_;
  ShardedOptimizer optimizer_;
  GradientReduction gradients_;
};

/// Three steps, of which the second and third use states that the first made.
Result trained(const optim::Rule& rule, const Setting& setting) {
  Result out;
  std::mutex mutex;
  comm::run_threads(setting.ranks, [&](comm::World& world) {
    at::set_num_threads(1);
    Trainee trainee(world, rule, setting);
    trainee.steps(1, 3);
    Result weights;
    trainee.add_weights_to(weights);
    {
      const std::lock_guard lock(mutex);
      trainee.add_to(out);
      if (world.is_leader()) out.insert(weights.begin(), weights.end());
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the test"))->wait();
  });
  return out;
}

/// The names whose bytes differ, or that only one result has.
std::vector<std::string> differences(const Result& a, const Result& b) {
  std::vector<std::string> out;
  for (const auto& [name, bytes] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second != bytes) out.push_back(name);
  }
  for (const auto& [name, bytes] : b) {
    if (!a.contains(name)) out.push_back(name);
  }
  return out;
}

const std::vector<std::string> kNone;

std::vector<Setting> settings() {
  constexpr DType kBf16 = DType::BF16;
  return {{.ranks = 1, .stage = 0},
          {.ranks = 2, .stage = 0, .working = kBf16},
          {.ranks = 2, .stage = 1, .working = kBf16, .kept = {.states = kBf16}},
          {.ranks = 2, .stage = 2, .working = kBf16, .kept = {.masters = kBf16, .states = kBf16}},
          {.ranks = 3, .stage = 3, .working = kBf16}};
}

class StatePlaces : public ::testing::TestWithParam<std::string> {};

TEST_P(StatePlaces, GiveTheBitsOfOneUnitInMemory) {
  const auto rule = make_rule(GetParam());
  const std::vector<Setting> all = settings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    Setting setting = all[i];
    SCOPED_TRACE("stage " + std::to_string(setting.stage) + ", " +
                 std::string(name(setting.working)));
    const Result wanted = trained(*rule, setting);
    EXPECT_GT(wanted.size(), 40U);
    setting.unit_elements = 2 * kChunk;
    if (i == 0) {
      EXPECT_EQ(differences(trained(*rule, setting), wanted), kNone) << "units in memory";
    }
    // Tiers and numbers of buffers take turns.
    setting.tier = i % 2 == 0 ? "disk" : "host";
    setting.buffers = 1 + static_cast<int>(i % 3);
    setting.share = i == 4 ? 0.4 : 1.0;
    EXPECT_EQ(differences(trained(*rule, setting), wanted), kNone)
        << setting.tier << ", " << setting.buffers << " buffers";
    if (i != 1) continue;
    setting.unit_elements = std::numeric_limits<std::int64_t>::max();
    EXPECT_EQ(differences(trained(*rule, setting), wanted), kNone) << "whole buffers";
  }
}

TEST_P(StatePlaces, GiveTheBitsOfWeightsInMemoryIfTheyRest) {
  constexpr DType kBf16 = DType::BF16;
  const auto rule = make_rule(GetParam());
  const std::vector<Setting> all = {
      {.ranks = 1, .stage = 3, .weights = "host", .weight_buffers = 1},
      {.ranks = 2, .stage = 3, .unit_elements = 3 * kChunk, .weights = "disk"},
      {.ranks = 2, .stage = 3, .working = kBf16, .weights = "host", .weight_buffers = 2},
      {.ranks = 1,
       .stage = 3,
       .working = kBf16,
       .kept = {.masters = kBf16, .states = kBf16},
       .weights = "disk"},
      {.ranks = 3,
       .stage = 3,
       .working = kBf16,
       .tier = "host",
       .unit_elements = 2 * kChunk,
       .share = 0.6,
       .weights = "disk"}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Setting memory = all[i];
    memory.weights.clear();
    EXPECT_EQ(differences(trained(*rule, all[i]), trained(*rule, memory)), kNone);
  }
}

// One rule for each scope and kind of state: elementwise, with eight-bit states, with norms, and
// with whole directions, one of which also has states by rows and columns.
INSTANTIATE_TEST_SUITE_P(Rules,
                         StatePlaces,
                         ::testing::Values("AdamW", "AdamW8bit", "Lamb", "Muon", "Adafactor"),
                         [](const auto& param) { return param.param; });

TEST(StatePlace, RunsContinueInAnyOtherPlace) {
  for (const std::string type : {"AdamW", "AdamW8bit"}) {
    const auto rule = make_rule(type);
    const Setting memory{.working = DType::BF16, .kept = {.states = DType::BF16}};
    Setting tier = memory;
    tier.tier = "disk";
    tier.unit_elements = 3 * kChunk;
    Setting weights = memory, both = tier;
    weights.stage = both.stage = 3;
    weights.weights = both.weights = "host";
    weights.kept.masters = DType::BF16;
    const auto place = [](const Setting& of) {
      return (of.tier.empty() ? "" : "states in a tier ") +
             std::string(of.weights.empty() ? "" : "weights in a tier ");
    };
    Setting narrow = memory;
    narrow.kept.masters = DType::BF16;
    for (const auto& [before, after] : {std::pair(memory, tier),
                                        std::pair(tier, memory),
                                        std::pair(tier, tier),
                                        std::pair(both, memory),
                                        std::pair(memory, both),
                                        std::pair(weights, narrow),
                                        std::pair(narrow, weights)}) {
      SCOPED_TRACE(type + " from " + place(before) + " to " + place(after));
      const Result wanted = trained(*rule, before.kept == narrow.kept ? narrow : memory);
      const files::TempDir dir;
      Result found;
      comm::run_threads(1, [&, from = before, to = after](comm::World& world) {
        at::set_num_threads(1);
        std::filesystem::path saved;
        {
          Trainee first(world, *rule, from);
          first.steps(1, 2);
          checkpoint::Meta meta;
          meta.step = 2;
          saved = checkpoint::save(dir.path(), meta, first.optimizer().pieces(true), {});
          first.optimizer().release_pieces();
        }
        Trainee second(world, *rule, to);
        second.optimizer().load(checkpoint::Checkpoint(saved));
        second.steps(3, 1);
        second.add_to(found);
        second.add_weights_to(found);
      });
      EXPECT_EQ(differences(found, wanted), kNone);
    }
  }
}

class SavedPlaces : public ::testing::TestWithParam<Setting> {};

TEST_P(SavedPlaces, ASaveInTheBackgroundHasTheBytesOfItsStep) {
  const auto rule = make_rule("AdamW");
  comm::run_threads(1, [&](comm::World& world) {
    at::set_num_threads(1);
    Trainee trainee(world, *rule, GetParam());
    trainee.steps(1, 1);
    Result before, later;
    trainee.add_to(before);
    const std::vector<checkpoint::PieceBytes> pieces = trainee.optimizer().pieces(true);
    EXPECT_GT(std::ranges::count_if(pieces, [](const auto& piece) { return !!piece.source; }), 20);

    trainee.steps(2, 2);  // while the pieces are being written

    for (const checkpoint::PieceBytes& piece : pieces) {
      if (piece.source) add(piece, later);
    }
    for (const auto& [name, bytes] : later)
      EXPECT_TRUE(bytes == before.at(name)) << name;
    trainee.add_to(later);
    EXPECT_NE(differences(before, later), kNone) << "the steps changed nothing";
  });
}

INSTANTIATE_TEST_SUITE_P(
    All,
    SavedPlaces,
    ::testing::Values(Setting{.working = DType::BF16, .tier = "host", .unit_elements = 3 * kChunk},
                      Setting{.stage = 3, .weights = "disk"},
                      Setting{.stage = 3,
                              .working = DType::BF16,
                              .kept = {.masters = DType::BF16},
                              .weights = "host"}),
    [](const auto& param) { return "Setting" + std::to_string(param.index); });

TEST(StatePlace, ResultsOfAMovingAverageAreExchangedInATier) {
  const auto rule = optim::with_average(make_rule("AdamW"), {.decay = 0.9});
  const auto swapped = [&](const Setting& setting, int times) {
    Result out;
    comm::run_threads(1, [&](comm::World& world) {
      at::set_num_threads(1);
      Trainee trainee(world, *rule, setting);
      trainee.steps(1, 2);
      for (int i = 0; i < times; ++i)
        trainee.optimizer().exchange_weights(optim::kAverageState);
      trainee.add_weights_to(out);
    });
    return out;
  };
  const Setting memory{.working = DType::BF16};
  Setting tier = memory;
  tier.tier = "host";
  tier.unit_elements = kChunk;

  EXPECT_EQ(differences(swapped(tier, 1), swapped(memory, 1)), kNone);
  EXPECT_EQ(differences(swapped(tier, 2), swapped(memory, 0)), kNone);
  Setting weights{.stage = 3, .weights = "host", .weight_buffers = 2}, wide;
  EXPECT_EQ(differences(swapped(weights, 1), swapped(wide, 1)), kNone);
  EXPECT_NE(differences(swapped(memory, 1), swapped(memory, 0)), kNone);
}

/// A tier in memory of which transfers fail from the number `fails` on, counted over all files.
class FailingTier final : public memory::Tier {
 public:
  explicit FailingTier(int fails) : fails_(fails) {}
  [[nodiscard]] std::string_view name() const override { return "failing"; }
  [[nodiscard]] std::int64_t block() const override { return kBlock; }
  std::unique_ptr<memory::TierFile> open(std::string what, std::int64_t bytes) override {
    return std::make_unique<File>(host_->open(std::move(what), bytes), *this);
  }
  [[nodiscard]] memory::TierUse use() const override { return host_->use(); }
  [[nodiscard]] int transfers() const { return transfers_; }

 private:
  class File final : public memory::TierFile {
   public:
    File(std::unique_ptr<memory::TierFile> file, FailingTier& of)
        : file_(std::move(file)), of_(of) {}
    [[nodiscard]] std::int64_t size() const override { return file_->size(); }
    memory::Ticket read(std::int64_t at, std::span<std::byte> to) override {
      return noted(file_->read(at, to));
    }
    memory::Ticket write(std::int64_t at, std::span<const std::byte> from) override {
      return noted(file_->write(at, from));
    }
    void wait(memory::Ticket ticket) override {
      if (failed_ > 0 && ticket.id >= failed_)
        throw Error(Error::Kind::Io, "the disk of the test is full");
      file_->wait(ticket);
    }
    std::shared_ptr<const ByteSource> snapshot() override { return file_->snapshot(); }

   private:
    memory::Ticket noted(memory::Ticket ticket) {
      if (++of_.transfers_ >= of_.fails_ && failed_ == 0) failed_ = ticket.id;
      return ticket;
    }
    std::unique_ptr<memory::TierFile> file_;
    FailingTier& of_;
    std::uint64_t failed_ = 0;
  };

  std::unique_ptr<memory::Tier> host_ = memory::tiers().get("host")({.block_bytes = kBlock});
  int fails_, transfers_ = 0;
};

/// The argument: the weights rest in the tier, and not masters and states.
class FailingTiers : public ::testing::TestWithParam<bool> {};

TEST_P(FailingTiers, AreTheErrorOfTheStep) {
  const auto rule = make_rule("AdamW");
  const auto run = [&](FailingTier& tier) {
    comm::run_threads(1, [&](comm::World& world) {
      WeightOptions weights{.working = DType::BF16};
      StatePlace place{.tier = &tier, .unit_elements = 8 * kChunk};
      if (GetParam()) {
        weights.residency = Residency::Resting;
        std::swap(weights.tier, place.tier);
      }
      ModelInstance model(models::gpt2(tiny()), weights, world);
      ShardedOptimizer optimizer(world,
                                 model,
                                 *rule,
                                 /*stage=*/GetParam() ? 3 : 0,
                                 {},
                                 {},
                                 /*trained_alone=*/false,
                                 place);
      optimizer.fill([](const ParamInfo&, std::int64_t begin, std::int64_t end, float* out) {
        std::fill_n(out, end - begin, 1.0F);
      });
      GradientReduction gradients(world, model, {});
      reduce_step(model, gradients, 1);
      optimizer.update(gradients, {.lr = 0.1});
      optimizer.wait_weights();
      for (FlatGroup& group : model.groups()) {
        group.weights->wait();
        group.weights->release();
      }
    });
  };
  FailingTier works(1 << 30);
  run(works);
  ASSERT_GT(works.transfers(), 20);

  for (int fails = 1; fails <= works.transfers(); fails += 3) {
    FailingTier tier(fails);
    EXPECT_THROW(
        {
          try {
            run(tier);
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), Error::Kind::Io) << error.what();
            throw;
          }
        },
        Error)
        << "transfer " << fails;
  }
}

INSTANTIATE_TEST_SUITE_P(Values, FailingTiers, ::testing::Bool(), [](const auto& param) {
  return param.param ? "Weights" : "States";
});

TEST(StatePlace, ValuesThatRestCannotBeUsedWithoutALease) {
  const auto rule = make_rule("AdamW");
  const auto tier = memory::tiers().get("host")({.block_bytes = kBlock});
  comm::run_threads(1, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), {.working = DType::BF16}, world);
    ShardStore store(world, model, *rule, {.place = {.tier = tier.get(), .unit_elements = kChunk}});
    const KeptState& state = store.shards(0).front().states.front().kept;

    EXPECT_FALSE(state.in_memory());
    EXPECT_THROW((void)state.floats(), Error);
    {
      const ShardStore::Lease lease = store.acquire(0, Access::Write);
      ASSERT_TRUE(state.in_memory());
      state.floats()[0] = 5.0F;
    }
    EXPECT_FALSE(state.in_memory());
    const ShardStore::Lease again = store.acquire(0, Access::Read);
    EXPECT_EQ(state.floats()[0], 5.0F);
  });
}

TEST(UnitBuffers, TakeTheMemoryOfTheirLargestUnitFromTheirFirstUseOn) {
  memory::Ledger ledger;
  const memory::ScopedLedger counts(ledger);
  const auto used = [&] {
    return ledger.usage().current[static_cast<std::size_t>(memory::Tag::Optimizer)];
  };
  const auto tier = memory::tiers().get("host")({.block_bytes = kBlock});
  UnitBuffers buffers(*tier, 2);
  const std::vector<std::int64_t> sizes = {100, 3 * kBlock, kBlock + 1};
  buffers.set_units(0, sizes, "test");
  EXPECT_EQ(used(), 0);

  buffers.fetch(0);
  EXPECT_EQ(used(), 3 * kBlock);
  for (std::size_t unit = 0; unit < 3; ++unit) {
    for (std::size_t ahead = unit; ahead < 3; ++ahead)
      buffers.fetch(ahead);
    const std::span<std::byte> bytes = buffers.acquire(unit);
    EXPECT_EQ(std::ssize(bytes), sizes[unit]);
    EXPECT_EQ(std::ranges::count(bytes, std::byte{0}), sizes[unit]);
    std::ranges::fill(bytes, static_cast<std::byte>(unit + 1));
    buffers.release(unit, /*changed=*/true);
  }
  EXPECT_EQ(used(), 6 * kBlock);
  const auto all = buffers.snapshot(0);
  for (std::size_t unit = 0; unit < 3; ++unit) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(sizes[unit]));
    all->read(static_cast<std::uint64_t>(buffers.unit_begin(unit)), bytes);
    EXPECT_EQ(std::ranges::count(bytes, static_cast<std::byte>(unit + 1)), sizes[unit]);
    const std::span<std::byte> again = buffers.acquire(unit);
    EXPECT_TRUE(std::ranges::equal(again, bytes));
    buffers.release(unit, /*changed=*/false);
  }
}

}  // namespace
}  // namespace tessera::parallel
