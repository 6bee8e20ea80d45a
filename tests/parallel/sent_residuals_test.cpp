// SPDX-License-Identifier: Apache-2.0
// labels: fast
// The residuals of error feedback: what is saved of them, and who takes them up.
#include "tessera/parallel/sent_residuals.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/models/gpt2.h"

namespace tessera::parallel {
namespace {

models::Gpt2Shape tiny() {
  models::Gpt2Shape shape;
  shape.num_layers = 1;
  shape.hidden_size = 32;
  shape.num_heads = 4;
  shape.ffn_hidden_size = 64;
  shape.vocab_size = 64;
  shape.max_positions = 8;
  return shape;
}

/// The tensors that the ranks of a save have written, by name.
struct Saved {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, at::Tensor> rows;
};

/// A checkpoint in memory.
class Memory final : public checkpoint::Source {
 public:
  explicit Memory(const Saved& saved) : saved_(saved) {}
  void read(const std::string& name,
            const mesh::Piece& want,
            DType to,
            std::byte* out) const override {
    ASSERT_EQ(to, DType::BF16);
    const at::Tensor part =
        saved_.rows.at(name).view({-1}).narrow(0, want.begin, want.end - want.begin);
    std::memcpy(out, part.const_data_ptr(), part.nbytes());
  }

 private:
  const Saved& saved_;
};

checkpoint::Checkpoint opened(const Saved& saved) {
  std::vector<checkpoint::Checkpoint::Tensor> tensors;
  for (const auto& [name, shape] : saved.shapes)
    tensors.push_back({name, DType::BF16, shape});
  return {"memory", {}, std::move(tensors), std::make_shared<Memory>(saved)};
}

/// Calls run(residuals, model, rank) on threads.
template <class Run>
void on_ranks(int ranks, const Run& run) {
  comm::run_threads(ranks, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny()), {}, world);
    SentResiduals residuals(world.group(mesh::AxisSet::dp()), model);
    run(residuals, model, world.rank());
  });
}

/// Two ranks save residuals of 1 and 2 in every element.
Saved save_of_two() {
  Saved saved;
  std::mutex mutex;
  on_ranks(2, [&](SentResiduals& residuals, ModelInstance& model, int rank) {
    for (std::size_t g = 0; g < model.groups().size(); ++g) {
      for (std::size_t use = 0; use < model.groups()[g].uses.size(); ++use)
        residuals.of(g, use).fill_(1 + rank);
    }
    std::vector<checkpoint::PieceBytes> pieces;
    residuals.add_pieces(pieces);
    // The pieces are a copy.
    residuals.forget();
    const std::scoped_lock lock(mutex);
    for (const checkpoint::PieceBytes& piece : pieces) {
      saved.shapes[piece.name] = piece.shape;
      at::Tensor& rows = saved.rows[piece.name];
      if (!rows.defined()) rows = at::zeros(piece.shape, at::kBFloat16);
      const at::Tensor row = rows[rank];
      ASSERT_EQ(row.nbytes(), piece.bytes.size());
      std::memcpy(row.data_ptr(), piece.bytes.data(), piece.bytes.size());
    }
  });
  return saved;
}

/// The largest and the smallest residual of the parameters of every use.
std::pair<float, float> extremes(const SentResiduals& residuals, ModelInstance& model) {
  float most = -1e30F, least = 1e30F;
  for (std::size_t g = 0; g < model.groups().size(); ++g) {
    for (std::size_t use = 0; use < model.groups()[g].uses.size(); ++use) {
      for (const Segment& segment : model.groups()[g].layout.segments()) {
        const at::Tensor part = residuals.of(g, use).narrow(0, segment.begin, segment.numel);
        most = std::max(most, part.max().item<float>());
        least = std::min(least, part.min().item<float>());
      }
    }
  }
  return {least, most};
}

TEST(SentResiduals, AreARowOfEachRankForEveryUse) {
  const Saved saved = save_of_two();

  // The tied table has two uses.
  EXPECT_EQ(saved.shapes.at("optimizer.residual.0.wte.weight"),
            (std::vector<std::int64_t>{2, 64 * 32}));
  std::size_t uses = 0;
  for (const auto& [name, shape] : saved.shapes)
    uses += name.ends_with(".wte.weight") ? 1 : 0;
  EXPECT_EQ(uses, 2U);
}

TEST(SentResiduals, ComeBackToTheirRanks) {
  const Saved saved = save_of_two();

  on_ranks(2, [&](SentResiduals& residuals, ModelInstance& model, int rank) {
    residuals.load(opened(saved));
    const auto own = static_cast<float>(1 + rank);
    EXPECT_EQ(extremes(residuals, model), std::pair(own, own));
  });
}

TEST(SentResiduals, KeepTheirSumWithAnotherNumberOfRanks) {
  const Saved saved = save_of_two();
  for (const int ranks : {1, 4}) {
    on_ranks(ranks, [&](SentResiduals& residuals, ModelInstance& model, int /*rank*/) {
      residuals.load(opened(saved));
      const float share = 3.0F / static_cast<float>(ranks);
      EXPECT_EQ(extremes(residuals, model), std::pair(share, share));
    });
  }
}

TEST(SentResiduals, ThatACheckpointLacksAreZero) {
  on_ranks(1, [](SentResiduals& residuals, ModelInstance& model, int /*rank*/) {
    residuals.of(0, 0).fill_(1);
    const Saved nothing;
    residuals.load(opened(nothing));
    EXPECT_EQ(extremes(residuals, model), std::pair(0.0F, 0.0F));
  });
}

}  // namespace
}  // namespace tessera::parallel
