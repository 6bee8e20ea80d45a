// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/generate.h"

#include <algorithm>
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
  Generated out;
  std::optional<nn::StepContext> context;
  std::int64_t cached = 0;  // positions in the KV cache
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const double start = now_s();
    const bool fresh = !context || cached == room;
    if (fresh) {
      // The window is full: the last half of it is read anew, so that the text can go on.
      const std::int64_t limit = context ? std::max<std::int64_t>(1, room / 2) : room;
      const auto keep = std::min<std::int64_t>(static_cast<std::int64_t>(ids.size()), limit);
      ids.erase(ids.begin(), ids.end() - keep);
      context.emplace(nn::Mode::Prefill, options.seed);
      context->position = 0;
      const auto length = static_cast<std::int64_t>(ids.size());
      context->cache_capacity = length + std::min(room - length, options.max_new_tokens - i);
    } else {
      context->set_mode(nn::Mode::Decode);
      context->position = cached;
    }
    const std::span<const std::int32_t> input =
        fresh ? std::span<const std::int32_t>(ids) : std::span<const std::int32_t>(ids).last(1);
    const nn::Batch batch = prompt_batch(input);
    const nn::Outcome outcome = executor_.infer(batch, *context);
    cached += fresh ? static_cast<std::int64_t>(input.size()) - cached : 1;
    at::Tensor logits;
    if (const auto made = outcome.outputs.find("logits"); made != outcome.outputs.end())
      logits = made->second.select(0, 0).select(0, -1).to(at::kFloat).contiguous();
    logits = executor_.from_objective(logits, model_.vocab_size);
    if (options.ignore_eos && tokenizer_.end_of_text() < vocab) {
      logits = logits.clone();
      logits.data_ptr<float>()[tokenizer_.end_of_text()] = -std::numeric_limits<float>::infinity();
    }
    const auto next = static_cast<std::int32_t>(
        ops::sample_token(logits, vocab, options.sampler, options.seed, i));
    (fresh && i == 0 ? out.prompt_s : out.decode_s) += now_s() - start;
    if (next == tokenizer_.end_of_text() && !options.ignore_eos) {
      out.ended = true;
      break;
    }
    ids.push_back(next);
    out.tokens.push_back(next);
    if (on_token) on_token(next);
  }
  return out;
}

}  // namespace tessera::engine
