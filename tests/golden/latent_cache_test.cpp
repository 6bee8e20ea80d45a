// SPDX-License-Identifier: Apache-2.0
// labels: slow
// In generation, latent attention keeps the latent vector of each token, which all heads share, and
// computes what it computes from the keys and values of each head.
#include <optional>
#include <string>
#include <vector>

#include "golden/golden.h"
#include "golden/hf_models.h"
#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/ops/batch_invariance.h"

namespace tessera {
namespace {

using test::ModelRunner;

struct LatentModel {
  explicit LatentModel(const std::string& name)
      : config(golden::read_json(golden::folder() / "models" / name / "config.json")),
        resolved(golden::resolved_from_hf(config)),
        runner(resolved.model, DType::F32, nullptr, {}) {
    const models::Family& family = models::families().get(models::family_of_hf(config));
    const models::WeightSource source =
        interop::weights_from_hf(golden::folder() / "models" / name, family, resolved);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      source(info, 0, info.numel(), out.data_ptr<float>());
    });
  }

  /// The logits of the tokens from `prompt` on, with a cache. `pages`: the pages of the sequence;
  /// none: the cache is contiguous. Stores the number of values that the last block's cache has for
  /// a token.
  at::Tensor generated(const at::Tensor& ids_1T, std::int64_t prompt, bool paged) {
    nn::StepContext context(nn::Mode::Prefill, 1);
    std::vector<at::Tensor> logits;
    const std::int64_t all = ids_1T.size(1);
    for (std::int64_t at = 0; at < all; at = context.position) {
      const std::int64_t count = at == 0 ? prompt : 1;
      nn::Batch batch = test::make_batch(ids_1T.narrow(1, at, count));
      if (paged) {
        batch.set(nn::kPageTable, at::arange(2, at::kLong).view({1, 2}));
        batch.set(nn::kTextPosition, at::full({1}, at, at::kLong));
      }
      logits.push_back(runner.infer(batch, context).outputs.at("logits").view({1, -1}));
      context.set_mode(nn::Mode::Decode);
      context.position += count;
    }
    nn::Block& last = runner.instance().block(static_cast<int>(resolved.num_layers));
    width = paged ? context.state<nn::PagedKvCache>(last).pages().keys_PGNK.size(3)
                  : context.state<nn::KvCache>(last).keys().size(3);
    heads = paged ? context.state<nn::PagedKvCache>(last).pages().keys_PGNK.size(1)
                  : context.state<nn::KvCache>(last).keys().size(1);
    return at::cat(logits);
  }

  json::Value config;
  models::Resolved resolved;
  ModelRunner runner;
  std::int64_t width = 0, heads = 0;
};

TEST(LatentCache, GivesTheLogitsOfTheWholeTextFromLatentVectors) {
  for (const char* const name : {"deepseek_v3", "deepseek_v2_group"}) {
    SCOPED_TRACE(name);
    LatentModel model(name);
    const std::int64_t tokens = 20, prompt = 7;
    const at::Tensor ids = (at::arange(tokens, at::kLong) * 31 % 89 + 3).view({1, -1});
    nn::StepContext whole(nn::Mode::Eval, 1);
    whole.want_logits = true;
    const at::Tensor expected = model.runner.infer(test::make_batch(ids), whole)
                                    .outputs.at("logits")[0]
                                    .narrow(0, prompt - 1, tokens - prompt + 1);
    const auto count = [&](const char* key) {
      return model.config.find(key)->as_integer().value();
    };

    for (const bool paged : {false, true}) {
      const at::Tensor made = model.generated(ids, prompt, paged);

      EXPECT_LT((made - expected).abs().max().item<float>(), 2e-5F) << "paged: " << paged;
      EXPECT_EQ(model.width, count("kv_lora_rank") + count("qk_rope_head_dim"));
      EXPECT_EQ(model.heads, 1);
    }

    const ops::BatchInvariance exact;
    const at::Tensor same = model.generated(ids, prompt, false);

    EXPECT_LT((same - expected).abs().max().item<float>(), 2e-5F);
    EXPECT_EQ(model.heads, count("num_attention_heads")) << "bits of training need keys of heads";
  }
}

}  // namespace
}  // namespace tessera
