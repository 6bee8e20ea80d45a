// SPDX-License-Identifier: Apache-2.0
// labels: fast
// What rests of activations comes back with its bits, shapes and strides, in any order.
#include "tessera/parallel/activation_store.h"

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/memory/tiers/tier.h"

namespace tessera::parallel {
namespace {

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

TEST(ActivationStores, ReturnWhatWasPutInAnyOrderAndSize) {
  const files::TempDir dir;
  for (const char* name : {"host", "disk"}) {
    for (const int buffers : {1, 2, 5}) {
      const auto tier =
          memory::tiers().get(name)({.folder = dir.path().string(), .block_bytes = 4096});
      const auto store = activations_in(*tier, buffers);
      std::mt19937 random(7);
      std::map<ActivationStore::Number, at::Tensor> kept;
      for (int i = 0; i < 200; ++i) {
        if (random() % 2 == 0 || kept.empty()) {
          // Later tensors are larger than the files that were opened for the first ones.
          const auto rows = static_cast<std::int64_t>(1 + random() % (i < 100 ? 5 : 40));
          at::Tensor tensor = at::rand({rows, 6, 70});
          if (random() % 2 == 0) tensor = tensor.transpose(0, 2);
          if (random() % 2 == 0) tensor = tensor.to(at::kBFloat16);
          ASSERT_TRUE(store->takes(tensor));
          kept.emplace(store->put(tensor), tensor.clone(at::MemoryFormat::Preserve));
        } else {
          const auto any =
              std::next(kept.begin(), static_cast<std::ptrdiff_t>(random() % kept.size()));
          if (random() % 2 == 0) store->fetch(any->first);
          EXPECT_TRUE(same(store->take(any->first), any->second));
          kept.erase(any);
        }
      }
      EXPECT_GT(tier->use().written_bytes, 0);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ActivationStores, DoNotTakeViewsWithGapsAndTensorsWithoutElements) {
  const files::TempDir dir;
  const auto tier = memory::tiers().get("host")({.folder = "", .block_bytes = 4096});
  const auto store = activations_in(*tier, 1);

  EXPECT_FALSE(store->takes(at::rand({4, 8}).narrow(1, 0, 4)));
  EXPECT_FALSE(store->takes(at::rand({1, 8}).expand({4, 8})));
  EXPECT_FALSE(store->takes(at::rand({0, 8})));
}

}  // namespace
}  // namespace tessera::parallel
