// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/generate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"

namespace tessera::engine {
namespace {

/// Passes bytes on as whole characters.
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

/// Chooses the next token by the rules, from one row of logits; `seen` is the row's history.
std::int32_t choose(const at::Tensor& logits_V,
                    std::int64_t vocab,
                    const GenerateOptions& options,
                    const TokenHistory& seen,
                    std::span<const std::int32_t> ends,
                    std::uint64_t seed,
                    std::int64_t position) {
  const at::Tensor row = logits_V.narrow(0, 0, vocab).to(at::kCPU, at::kDouble).contiguous();
  const auto* data = row.data_ptr<double>();
  std::vector<double> logits(data, data + vocab);
  apply_rules(logits, options.rules, seen, ends);
  const auto best = std::max_element(logits.begin(), logits.end());
  TESSERA_REQUIRE(std::isfinite(*best),
                  Config,
                  "the rules of generation leave no token to choose",
                  "ask for fewer of them");
  if (options.sampler.temperature == 0.0) return static_cast<std::int32_t>(best - logits.begin());
  apply_temperature(logits, options.sampler.temperature);
  if (options.sampler.top_k > 0) keep_top_k(logits, options.sampler.top_k);
  if (options.sampler.top_p < 1.0) keep_top_p(logits, options.sampler.top_p);
  if (options.rules.min_p > 0.0) keep_min_p(logits, options.rules.min_p);
  if (options.rules.typical_p < 1.0) keep_typical(logits, options.rules.typical_p);
  if (options.rules.epsilon_cutoff > 0.0) keep_epsilon(logits, options.rules.epsilon_cutoff);
  if (options.rules.eta_cutoff > 0.0) keep_eta(logits, options.rules.eta_cutoff);
  const Philox::Block words = Philox{seed}(static_cast<std::uint64_t>(position));
  double rest = uniform_double(words[0], words[1]);
  const std::vector<double> probabilities = softmax(logits);
  std::int32_t chosen = 0;
  for (std::size_t id = 0; id < probabilities.size(); ++id) {
    if (probabilities[id] <= 0.0) continue;
    chosen = static_cast<std::int32_t>(id);
    rest -= probabilities[id];
    if (rest < 0.0) break;
  }
  return chosen;
}

/// Appends the bytes of a token. Returns true if a stop string occurs in the text, which is
/// truncated there.
bool append_and_stop(std::string& text,
                     std::string_view bytes,
                     const std::vector<std::string>& stops) {
  const std::size_t before = text.size();
  text += bytes;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops) {
    const std::size_t from = before - std::min(before, stop.size() - 1);
    first = std::min(first, text.find(stop, from));
  }
  if (first == std::string::npos) return false;
  text.resize(first);
  return true;
}

std::size_t longest(const std::vector<std::string>& stops) {
  std::size_t out = 1;
  for (const std::string& stop : stops)
    out = std::max(out, stop.size());
  return out;
}

}  // namespace

Generator::Generator(parallel::Executor& executor,
                     const data::Tokenizer& tokenizer,
                     const models::Resolved& model)
    : executor_(executor), tokenizer_(tokenizer), model_(model) {}

std::vector<std::int32_t> Generator::encode(std::string_view prompt) const {
  std::vector<std::int32_t> ids = tokenizer_.encode_prompt(prompt);
  const std::int32_t end = tokenizer_.end_of_text();
  if (answers() && (ids.empty() || ids.back() != end)) ids.push_back(end);
  return ids;
}

Generated Generator::run(std::string_view prompt,
                         const GenerateOptions& options,
                         const std::function<void(std::string_view)>& on_text) {
  std::vector<std::int32_t> ids = encode(prompt);
  Utf8Stream stream(on_text);
  // Bytes that may begin a stop string are held back.
  const std::size_t waiting = longest(options.stop_strings) - 1;
  std::string text;
  std::size_t told = 0;
  Generated out = run_ids(std::move(ids), options, [&](std::int32_t id) {
    text += tokenizer_.bytes_of(id);
    if (text.size() <= told + waiting) return;
    stream.write(std::string_view(text).substr(told, text.size() - waiting - told));
    told = text.size() - waiting;
  });
  if (out.text.size() > told) stream.write(std::string_view(out.text).substr(told));
  stream.finish();
  return out;
}

std::vector<std::int32_t> Generator::ends(const GenerateOptions& options) const {
  std::vector<std::int32_t> out = options.stop_ids;
  if (!options.ignore_eos) out.push_back(tokenizer_.end_of_text());
  return out;
}

std::int64_t Generator::vocabulary() const {
  return model_.tokenizer_size > 0 ? model_.tokenizer_size : model_.vocab_size;
}

std::vector<std::int32_t> Generator::first_tokens(const std::vector<std::int32_t>& prompt) const {
  const auto& target = model_.trunk.output.target;
  return target ? std::vector<std::int32_t>{static_cast<std::int32_t>(target->start_token)}
                : prompt;
}

nn::Batch Generator::batch_of(const std::vector<std::int32_t>& prompt,
                              const std::vector<std::vector<std::int32_t>>& texts,
                              std::size_t tokens,
                              bool reads) const {
  if (!answers()) return prompt_batch(texts, tokens);
  const std::span<const std::int32_t> source(prompt.data(), reads ? prompt.size() : 0);
  return answer_batch(source, texts, tokens);
}

void Generator::check_prompt(const std::vector<std::int32_t>& ids) const {
  for (const std::int32_t id : ids) {
    TESSERA_REQUIRE(id >= 0 && id < model_.vocab_size,
                    Data,
                    fmt::format("token {} of the prompt is not below the model's vocabulary of {}",
                                id,
                                model_.vocab_size),
                    "use the tokenizer that the model was trained with");
  }
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

/// The logits after the last token of each sequence, fp32 [sequences, vocabulary].
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

/// `on_token` receives the tokens of the first sequence.
std::vector<Generated> Generator::make(std::vector<std::int32_t> prompt,
                                       const GenerateOptions& options,
                                       int count,
                                       const std::function<void(std::int32_t)>& on_token) {
  if (prompt.empty()) prompt.push_back(tokenizer_.end_of_text());
  const std::int64_t room =
      answers() ? std::numeric_limits<std::int64_t>::max() : model_.max_positions;
  const std::int64_t vocab = vocabulary();
  check_prompt(prompt);
  const std::vector<std::int32_t> ids = first_tokens(prompt);
  const bool ruled = options.rules.any();
  const std::vector<std::int32_t> stops = ends(options);
  std::vector<Generated> out(static_cast<std::size_t>(count));
  // Sequences that have ended continue to grow, unreported, so that all have the same length.
  std::vector<std::vector<std::int32_t>> texts(out.size(), ids);
  std::vector<std::vector<std::int32_t>> histories(ruled ? out.size() : 0, ids);
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
      // When the window is full, its last half is processed again, so that generation can continue.
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
    const at::Tensor logits =
        next_logits(batch_of(prompt, texts, static_cast<std::size_t>(tokens), /*reads=*/fresh),
                    *context,
                    options.ignore_eos);
    cached += tokens;
    for (std::size_t s = 0; s < out.size(); ++s) {
      if (ruled && out[s].ended) {
        texts[s].push_back(texts[s].back());
        continue;
      }
      const at::Tensor row = logits.select(0, static_cast<std::int64_t>(s));
      const std::int32_t next =
          ruled
              ? choose(row, vocab, options, {histories[s], ids.size()}, stops, options.seed + s, i)
              : static_cast<std::int32_t>(
                    ops::sample_token(row, vocab, options.sampler, options.seed + s, i));
      texts[s].push_back(next);
      if (out[s].ended) continue;
      out[s].ended = std::find(stops.begin(), stops.end(), next) != stops.end();
      if (out[s].ended) continue;
      out[s].tokens.push_back(next);
      if (ruled) histories[s].push_back(next);
      out[s].ended = append_and_stop(out[s].text, tokenizer_.bytes_of(next), options.stop_strings);
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
