// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Sums of squares of sharded gradients, and the parameter that made one infinite.
#include "tessera/parallel/gradient_norm.h"

#include <cmath>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "parallel/tiny_gpt2.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/models/gpt2.h"

namespace tessera::parallel {
namespace {

/// A whole buffer of a group: `value` everywhere in its parameters, `other` in the last element of
/// those that are called one of `spots`, and zero between the parameters.
at::Tensor buffer(const FlatGroup& group,
                  double value,
                  const std::vector<std::string>& spots = {},
                  double other = INFINITY) {
  const at::Tensor flat = at::zeros({group.layout.numel()});
  for (const Segment& segment : group.layout.segments()) {
    flat.narrow(0, segment.begin, segment.numel).fill_(value);
    for (const std::string& spot : spots) {
      if (segment.info->name == spot) flat[segment.end() - 1] = other;
    }
  }
  return flat;
}

at::Tensor shard_of(const FlatGroup& group, const at::Tensor& whole, int rank) {
  return whole.narrow(0, group.layout.shard_begin(rank), group.layout.shard_numel()).clone();
}

TEST(GradientNorm, HasTheSameSumsOnAnyNumberOfRanks) {
  std::vector<std::vector<double>> sums;
  for (const int ranks : {1, 2, 3}) {
    std::mutex mutex;
    comm::run_threads(ranks, [&](comm::World& world) {
      ModelInstance model(models::gpt2(tiny_gpt2()), {}, world);
      GradientNorm norm(world, model);

      const std::vector<double> here = norm.chunk_sums([&](int g) {
        const FlatGroup& group = model.groups()[static_cast<std::size_t>(g)];
        return shard_of(group, buffer(group, 0.5), world.rank());
      });

      // Squares of 1/2 are exact, and so are their sums.
      EXPECT_EQ(std::accumulate(here.begin(), here.end(), 0.0),
                0.25 * static_cast<double>(model.num_parameters()));
      const std::scoped_lock lock(mutex);
      sums.push_back(here);
    });
  }
  for (const std::vector<double>& other : sums)
    EXPECT_EQ(other, sums.front());
}

TEST(GradientNorm, OfGradientsThatRanksKeepIsTheMeanOfTheirSquares) {
  comm::run_threads(2, [&](comm::World& world) {
    ModelInstance model(models::gpt2(tiny_gpt2()), {}, world);
    GradientNorm norm(world, model);

    const std::vector<double> sums = norm.rank_sums([&](int g) {
      return buffer(model.groups()[static_cast<std::size_t>(g)], world.rank() == 0 ? 0.5 : 1.0);
    });

    // A rank estimates the gradient as twice its own sum; the result is the mean of 2^2 (1/4) N and
    // 2^2 N, half of which each rank contributes.
    const auto numel = static_cast<double>(model.num_parameters());
    EXPECT_EQ(sums, (std::vector<double>{0.5 * numel, 2.0 * numel}));
  });
}

TEST(GradientNorm, SuspectsTheLastBlockThatHasAParameterOfItsOwn) {
  const auto suspect_of = [](const std::vector<std::string>& spots) {
    std::string out = "none";
    comm::run_threads(1, [&](comm::World& world) {
      ModelInstance model(models::gpt2(tiny_gpt2()), {}, world);
      GradientNorm norm(world, model);
      const auto found = norm.suspect(norm.chunk_sums(
          [&](int g) { return buffer(model.groups()[static_cast<std::size_t>(g)], 1.0, spots); }));
      if (found) out = found->block + " " + found->tensor;
    });
    return out;
  };

  EXPECT_EQ(suspect_of({}), "none");
  EXPECT_EQ(suspect_of({"h.0.ln_1.bias", "h.1.mlp.c_fc.weight"}), "h.1 h.1.mlp.c_fc.weight");
  // The head uses wte as well, after every layer; but the layers' own parameters identify a block
  // better.
  EXPECT_EQ(suspect_of({"wte.weight", "h.0.ln_1.bias"}), "h.0 h.0.ln_1.bias");
  EXPECT_NE(suspect_of({"wte.weight"}).find("wte.weight"), std::string::npos);
}

}  // namespace
}  // namespace tessera::parallel
