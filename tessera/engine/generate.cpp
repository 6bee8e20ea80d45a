// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/generate.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"

namespace tessera::engine {
namespace {

/// Hands bytes on as whole characters.
class Utf8Stream {
 public:
  explicit Utf8Stream(const std::function<void(std::string_view)>& out) : out_(out) {}
  void write(std::string_view bytes) {
    pending_ += bytes;
    const std::size_t keep = text::incomplete_utf8_tail(pending_);
    emit(std::string_view(pending_).substr(0, pending_.size() - keep));
    pending_.erase(0, pending_.size() - keep);
  }
  void finish() {
    emit(pending_);
    pending_.clear();
  }

 private:
  void emit(std::string_view bytes) {
    if (!bytes.empty() && out_) out_(text::replace_invalid_utf8(bytes));
  }
  const std::function<void(std::string_view)>& out_;
  std::string pending_;
};

}  // namespace

Generator::Generator(parallel::Executor& executor,
                     const data::Tokenizer& tokenizer,
                     const models::Resolved& model)
    : executor_(executor), tokenizer_(tokenizer), model_(model) {}

Generated Generator::run(std::string_view prompt,
                         const GenerateOptions& options,
                         const std::function<void(std::string_view)>& on_text) {
  std::vector<std::int32_t> ids;
  tokenizer_.encode(prompt, ids);
  Utf8Stream stream(on_text);
  Generated out = run_ids(
      std::move(ids), options, [&](std::int32_t id) { stream.write(tokenizer_.bytes_of(id)); });
  stream.finish();
  return out;
}

Generated Generator::run_ids(std::vector<std::int32_t> ids,
                             const GenerateOptions& options,
                             const std::function<void(std::int32_t)>& on_token) {
  return std::move(make(std::move(ids), options, 1, on_token).front());
}

std::vector<Generated> Generator::run_samples(std::vector<std::int32_t> ids,
                                              const GenerateOptions& options,
                                              int count) {
  return make(std::move(ids), options, count, {});
}

/// Behind the last token of each text, fp32 [texts, vocabulary].
at::Tensor Generator::next_logits(const nn::Batch& batch,
                                  nn::StepContext& context,
                                  bool ignore_eos) {
  const nn::Outcome outcome = executor_.infer(batch, context);
  const std::int64_t texts = batch.tensor("input_ids").size(0), vocab = model_.vocab_size;
  at::Tensor logits;
  if (const auto made = outcome.outputs.find("logits"); made != outcome.outputs.end())
    logits = made->second.select(1, -1).to(at::kFloat).contiguous().view({-1});
  logits = executor_.from_objective(logits, texts * vocab).view({texts, vocab});
  if (ignore_eos && tokenizer_.end_of_text() < vocab) {
    logits = logits.clone();
    logits.select(1, tokenizer_.end_of_text()).fill_(-std::numeric_limits<float>::infinity());
  }
  return logits;
}

/// `on_token` receives those of the first text.
std::vector<Generated> Generator::make(std::vector<std::int32_t> ids,
                                       const GenerateOptions& options,
                                       int count,
                                       const std::function<void(std::int32_t)>& on_token) {
  if (ids.empty()) ids.push_back(tokenizer_.end_of_text());
  const std::int64_t room = model_.max_positions;
  const std::int64_t vocab = model_.tokenizer_size > 0 ? model_.tokenizer_size : model_.vocab_size;
  for (const std::int32_t id : ids) {
    TESSERA_REQUIRE(id >= 0 && id < model_.vocab_size,
                    Data,
                    fmt::format("token {} of the prompt is not below the model's vocabulary of {}",
                                id,
                                model_.vocab_size),
                    "use the tokenizer that the model was trained with");
  }
  std::vector<Generated> out(static_cast<std::size_t>(count));
  // Texts that have ended grow on unseen, so that all are of one length.
  std::vector<std::vector<std::int32_t>> texts(out.size(), ids);
  double prompt_s = 0, decode_s = 0;
  std::optional<nn::StepContext> context;
  std::int64_t cached = 0;  // positions in the KV cache
  const auto goes_on = [](const Generated& one) { return !one.ended; };
  for (std::int64_t i = 0;
       i < options.max_new_tokens && std::any_of(out.begin(), out.end(), goes_on);
       ++i) {
    const double start = now_s();
    const bool fresh = !context || cached == room;
    if (fresh) {
      // The window is full: the last half of it is read anew, so that the text can go on.
      const std::int64_t limit = context ? std::max<std::int64_t>(1, room / 2) : room;
      const auto length = std::min<std::int64_t>(std::ssize(texts.front()), limit);
      for (std::vector<std::int32_t>& text : texts)
        text.erase(text.begin(), text.end() - length);
      context.emplace(nn::Mode::Prefill, options.seed);
      context->position = cached = 0;
      context->cache_capacity = length + std::min(room - length, options.max_new_tokens - i);
    } else {
      context->set_mode(nn::Mode::Decode);
      context->position = cached;
    }
    const std::int64_t tokens = fresh ? std::ssize(texts.front()) : 1;
    const at::Tensor logits = next_logits(
        prompt_batch(texts, static_cast<std::size_t>(tokens)), *context, options.ignore_eos);
    cached += tokens;
    for (std::size_t s = 0; s < out.size(); ++s) {
      const auto next = static_cast<std::int32_t>(
          ops::sample_token(logits.select(0, static_cast<std::int64_t>(s)),
                            vocab,
                            options.sampler,
                            options.seed + s,
                            i));
      texts[s].push_back(next);
      if (out[s].ended) continue;
      out[s].ended = next == tokenizer_.end_of_text() && !options.ignore_eos;
      if (!out[s].ended) out[s].tokens.push_back(next);
    }
    (i == 0 ? prompt_s : decode_s) += now_s() - start;
    if (on_token && !out.front().ended) on_token(out.front().tokens.back());
  }
  for (Generated& one : out) {
    one.prompt_s = prompt_s;
    one.decode_s = decode_s;
  }
  return out;
}

}  // namespace tessera::engine
