// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/embed.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

// Number of texts that are sorted together.
constexpr std::int64_t kWindow = 8192;

using Ids = std::vector<std::int32_t>;

/// Pads texts [B] to the longest, [B, T].
nn::Batch padded_batch(std::span<const Ids* const> texts, EmbedStats& stats) {
  std::size_t longest = 0;
  for (const Ids* ids : texts)
    longest = std::max(longest, ids->size());
  const auto B = static_cast<std::int64_t>(texts.size()), T = static_cast<std::int64_t>(longest);
  at::Tensor ids_BT = at::zeros({B, T}, at::kLong), mask_BT = at::zeros({B, T}, at::kLong);
  auto* id = ids_BT.data_ptr<std::int64_t>();
  auto* mask = mask_BT.data_ptr<std::int64_t>();
  nn::Batch batch;
  std::int64_t tokens = 0;
  for (const Ids* ids : texts) {
    std::copy(ids->begin(), ids->end(), id);
    std::fill_n(mask, ids->size(), 1);
    id += T;
    mask += T;
    tokens += std::ssize(*ids);
    batch.sample_ids.push_back(std::ssize(batch.sample_ids));
  }
  stats.tokens += tokens;
  stats.padding += B * T - tokens;
  batch.set("input_ids", std::move(ids_BT));
  if (tokens < B * T) batch.set("attention_mask", std::move(mask_BT));
  return batch;
}

at::Tensor embeddings_of(parallel::Executor& executor,
                         const models::Resolved& model,
                         const nn::Batch& batch) {
  const std::int64_t C = model.trunk.output.hidden_size;
  nn::StepContext context(nn::Mode::Eval, 0);
  const nn::Outcome outcome = executor.infer(batch, context);
  at::Tensor mine;
  if (const auto made = outcome.outputs.find("embedding"); made != outcome.outputs.end())
    mine = made->second.contiguous().view({-1});
  return executor.from_objective(mine, batch.size() * C)
      .to(at::kCPU)
      .contiguous()
      .view({batch.size(), C});
}

void require_any(const Ids& ids, std::int64_t text, const EmbedOptions& options) {
  TESSERA_REQUIRE(
      !ids.empty(),
      Data,
      options.file.empty() ? fmt::format("text {} has no tokens", text + 1)
                           : fmt::format("{}:{}: the text has no tokens", options.file, text + 1),
      options.file.empty() ? "leave empty texts out" : "write a text there, or remove the line");
}

}  // namespace

void require_tokens(const text::Tokenizer& tokenizer,
                    const std::vector<std::string>& texts,
                    const EmbedOptions& options) {
  constexpr std::size_t kShort = 64;
  if (!tokenizer.beginning().empty() || !tokenizer.ending().empty()) return;
  Ids ids;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() >= kShort) continue;
    ids.clear();
    tokenizer.encode(texts[i], ids);
    require_any(ids, static_cast<std::int64_t>(i), options);
  }
}

void require_known_ids(const Ids& ids, const models::Resolved& model) {
  for (const std::int32_t id : ids) {
    TESSERA_REQUIRE(
        id >= 0 && id < model.vocab_size,
        Data,
        fmt::format("token {} is not below the model's vocabulary of {}", id, model.vocab_size),
        "use the tokenizer that the model was trained with");
  }
}

Ids encode_whole(const text::Tokenizer& tokenizer,
                 const std::string& text,
                 std::int64_t most,
                 bool& cut) {
  Ids out = tokenizer.beginning();
  const Ids ending = tokenizer.ending();
  tokenizer.encode(text, out);
  const std::int64_t room = most - std::ssize(ending);
  TESSERA_REQUIRE(room > std::ssize(tokenizer.beginning()),
                  Config,
                  fmt::format("texts of at most {} tokens have no room for one of their own", most),
                  "raise the limit");
  cut = std::ssize(out) > room;
  if (cut) out.resize(static_cast<std::size_t>(room));
  out.insert(out.end(), ending.begin(), ending.end());
  return out;
}

EmbedStats embed(parallel::Executor& executor,
                 const text::Tokenizer& tokenizer,
                 const models::Resolved& model,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options,
                 const std::function<void(std::int64_t text, std::span<const float>)>& sink,
                 const std::function<void(std::int64_t texts)>& done) {
  const std::int64_t C = model.trunk.output.hidden_size, all = std::ssize(texts);
  const std::int64_t most = options.max_tokens > 0
                                ? std::min(options.max_tokens, model.max_positions)
                                : model.max_positions;
  EmbedStats stats;
  std::vector<Ids> ids;
  std::vector<std::size_t> order;
  for (std::int64_t first = 0; first < all; first += kWindow) {
    const std::int64_t count = std::min(kWindow, all - first);
    ids.assign(static_cast<std::size_t>(count), {});
    for (std::int64_t i = 0; i < count; ++i) {
      bool cut = false;
      Ids& own = ids[static_cast<std::size_t>(i)];
      own = encode_whole(tokenizer, texts[static_cast<std::size_t>(first + i)], most, cut);
      require_any(own, first + i, options);
      require_known_ids(own, model);
      stats.cut += cut ? 1 : 0;
    }
    order.resize(ids.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return ids[a].size() > ids[b].size(); });
    std::vector<float> made(static_cast<std::size_t>(count * C));
    for (std::size_t begin = 0; begin < order.size();) {
      const std::size_t longest = ids[order[begin]].size();
      const std::size_t fitting =
          std::max<std::size_t>(1, static_cast<std::size_t>(options.batch_tokens) / longest);
      const std::size_t end = std::min(order.size(), begin + fitting);
      std::vector<const Ids*> batch;
      for (std::size_t i = begin; i < end; ++i)
        batch.push_back(&ids[order[i]]);
      const at::Tensor rows = embeddings_of(executor, model, padded_batch(batch, stats));
      for (std::size_t i = begin; i < end; ++i) {
        std::copy_n(rows.data_ptr<float>() + static_cast<std::int64_t>(i - begin) * C,
                    C,
                    made.begin() + static_cast<std::int64_t>(order[i]) * C);
      }
      begin = end;
      if (done) done(first + static_cast<std::int64_t>(end));
    }
    for (std::int64_t i = 0; i < count; ++i)
      sink(first + i,
           std::span(made).subspan(static_cast<std::size_t>(i * C), static_cast<std::size_t>(C)));
    stats.texts += count;
  }
  return stats;
}

}  // namespace tessera::engine
