// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/embedding_noise.h"

#include <cmath>
#include <cstddef>
#include <memory>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kNoiseGrain = 16384;

class NoisyLookUp final : public LayerForm {
 public:
  explicit NoisyLookUp(float bound) : bound_(bound) {}

  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    return plain_linear(x, weight, bias, context);
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    const at::Tensor y = plain_embedding(ids_BT, table, context);
    if (!context.training()) return y;
    TESSERA_REQUIRE(!context.splits_samples(),
                    Unsupported,
                    "not built yet: noise on embeddings on a grid of ranks",
                    "set parallel.tensor.mode to 1d, or neftune_alpha to 0");
    return y + uniform_noise(y, context.dropout("neftune", 1.0), bound_);
  }

 private:
  float bound_;
};

}  // namespace

at::Tensor uniform_noise(const at::Tensor& x, const ops::DropoutKey& key, float bound) {
  if (x.is_meta()) return at::empty_like(x);
  const std::int64_t samples = x.size(0), each = samples == 0 ? 0 : x.numel() / samples;
  TESSERA_ASSERT(std::ssize(key.sample_ids) == samples && key.columns == 1);
  const auto parts = std::max<std::int64_t>(1, std::ssize(key.parts));
  TESSERA_ASSERT(each % parts == 0);
  const std::int64_t part = each / parts;
  const at::Tensor noise = at::empty(x.sizes(), at::kFloat);
  float* const out = noise.data_ptr<float>();
  at::parallel_for(0, x.numel(), kNoiseGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t in_sample = i % each, p = in_sample / part;
      const std::int64_t first =
          key.parts.empty() ? key.element_offset : key.parts[static_cast<std::size_t>(p)] * part;
      const auto element = static_cast<std::uint64_t>(first + in_sample - p * part);
      const auto sample =
          static_cast<std::uint64_t>(key.sample_ids[static_cast<std::size_t>(i / each)]);
      const std::uint32_t word = Philox{key.key}(element / 4, sample)[element % 4];
      out[i] = (2.0F * uniform_float(word) - 1.0F) * bound;
    }
  });
  return on_device(noise.to(x.scalar_type()), x.device());
}

void add_embedding_noise(Params& params, double alpha, std::int64_t tokens) {
  for (const auto& param : params.list()) {
    const ParamInfo& info = param->info();
    if (info.role != Role::TokenTable) continue;
    TESSERA_REQUIRE(
        param->extension() == nullptr,
        Unsupported,
        fmt::format("not built yet: noise on embeddings of {}, which has an adapter", info.name),
        "leave the embedding out of adapter.targets, or set neftune_alpha to 0");
    const double size = static_cast<double>(tokens) * static_cast<double>(info.shape.back());
    param->extend(std::make_shared<NoisyLookUp>(static_cast<float>(alpha / std::sqrt(size))));
  }
}

void add_embedding_noise(Model& model, double alpha, std::int64_t tokens) {
  // The objective does not look up embeddings, although it may use the table.
  for (std::size_t b = 0; b + 1 < model.blocks.size(); ++b) {
    model.blocks[b].adapt = [before = model.blocks[b].adapt, alpha, tokens](Params& params) {
      if (before) before(params);
      add_embedding_noise(params, alpha, tokens);
    };
  }
}

}  // namespace tessera::nn
