// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/generate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/stop_strings.h"
#include "tessera/models/objective.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/low_rank.h"
#include "tessera/nn/page_tables.h"

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

/// The pages of sequences, whose numbers also identify their encoder's output.
void set_rows(nn::Batch& batch, nn::PageTables& tables, const std::vector<std::size_t>& rows) {
  tables.describe(rows, batch);
  const std::vector<std::int64_t> numbers(rows.begin(), rows.end());
  batch.set(nn::kTextNumber, at::tensor(numbers, at::kLong));
}

std::size_t longest(const std::vector<std::string>& stops) {
  std::size_t out = 1;
  for (const std::string& stop : stops)
    out = std::max(out, stop.size());
  return out;
}

}  // namespace

Generator::Generator(parallel::Executor& executor,
                     const text::Tokenizer& tokenizer,
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
    if (!hides(id, options)) text += tokenizer_.bytes_of(id);
    if (text.size() <= told + waiting) return;
    stream.write(std::string_view(text).substr(told, text.size() - waiting - told));
    told = text.size() - waiting;
  });
  if (out.text.size() > told) stream.write(std::string_view(out.text).substr(told));
  stream.finish();
  return out;
}

std::vector<std::int32_t> Generator::ends_of_text(const GenerateOptions& options) const {
  return options.ends.empty() ? tokenizer_.ends() : options.ends;
}

std::vector<std::int32_t> Generator::ends(const GenerateOptions& options) const {
  std::vector<std::int32_t> out = options.stop_ids;
  if (options.ignore_eos) return out;
  for (const std::int32_t end : ends_of_text(options))
    out.push_back(end);
  return out;
}

bool Generator::hides(std::int32_t id, const GenerateOptions& options) const {
  return !options.show_special && tokenizer_.is_special(id);
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
  if (!answers()) {
    nn::Batch batch = prompt_batch(texts, tokens);
    if (models::traits_of(model_.objective.name).predicts == models::Predicts::NextTokenOfPrefix) {
      batch.set("prefix_lengths",
                at::full({std::ssize(texts)},
                         reads ? static_cast<std::int64_t>(tokens) : 0,
                         at::TensorOptions(at::kLong)));
    }
    return batch;
  }
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
at::Tensor Generator::next_logits(nn::Batch batch,
                                  nn::StepContext& context,
                                  const GenerateOptions& options,
                                  std::vector<std::int64_t> adapters) {
  if (adapters.empty())
    adapters.assign(static_cast<std::size_t>(batch.tensor("input_ids").size(0)), options.adapter);
  if (std::ranges::any_of(adapters, [](std::int64_t adapter) { return adapter >= 0; }))
    batch.set(nn::kAdapterNumber, at::tensor(adapters, at::kLong));
  const nn::Outcome outcome = executor_.infer(batch, context);
  const std::int64_t texts = batch.tensor("input_ids").size(0), vocab = model_.vocab_size;
  at::Tensor logits;
  if (const auto made = outcome.outputs.find("logits"); made != outcome.outputs.end())
    logits = made->second.select(1, -1).to(at::kFloat).contiguous().view({-1});
  logits = executor_.from_objective(logits, texts * vocab).view({texts, vocab});
  if (!options.ignore_eos) return logits;
  logits = logits.clone();
  for (const std::int32_t end : ends_of_text(options)) {
    if (end < vocab) logits.select(1, end).fill_(-std::numeric_limits<float>::infinity());
  }
  return logits;
}

/// The paged cache of sequences of different lengths.
struct Generator::Cached {
  explicit Cached(std::uint64_t seed) : context(nn::Mode::Prefill, seed) {}
  nn::StepContext context;
  nn::PageTables tables{nn::kPageTokens};
};

/// A sequence during its generation.
struct Generator::Text {
  std::vector<std::int32_t> prompt;  ///< the encoder's input, or the beginning of the sequence
  std::vector<std::int32_t> ids;     ///< ids of the decoder: the window that it sees
  std::vector<std::int32_t> seen;    ///< all ids from the prompt on, for the rules
  std::size_t given = 0;             ///< number of ids in `seen` that were given
  std::uint64_t seed = 0;
  int adapter = -1;
  std::int64_t steps = 0;   ///< number of tokens chosen
  std::int64_t cached = 0;  ///< positions in the KV cache
  std::size_t number = 0;   ///< number among the requested sequences
  std::size_t pages = 0;    ///< number in the page tables, if something is cached
  GeneratedBytes bytes;     ///< those of all tokens, in which stop strings are found
  Generated out;

  [[nodiscard]] bool done(const GenerateOptions& options) const {
    return out.ended || steps >= options.max_new_tokens;
  }
};

Generator::Text Generator::begun(std::vector<std::int32_t> prompt, std::uint64_t seed) const {
  if (prompt.empty()) prompt.push_back(tokenizer_.end_of_text());
  check_prompt(prompt);
  Text text;
  text.prompt = std::move(prompt);
  text.ids = text.seen = first_tokens(text.prompt);
  text.given = text.seen.size();
  text.seed = seed;
  return text;
}

std::int64_t Generator::room() const {
  return answers() ? std::numeric_limits<std::int64_t>::max() : model_.max_positions;
}

void Generator::begin_window(Text& text,
                             const GenerateOptions& options,
                             nn::StepContext& context) const {
  // When the window is full, its last half is processed again, so that generation can continue.
  const std::int64_t limit = text.cached > 0 ? std::max<std::int64_t>(1, room() / 2) : room();
  const auto length = std::min<std::int64_t>(std::ssize(text.ids), limit);
  text.ids.erase(text.ids.begin(), text.ids.end() - length);
  text.cached = 0;
  context.cache_capacity = length + std::min(room() - length, options.max_new_tokens - text.steps);
}

void Generator::take(Text& text, const at::Tensor& logits_V, const GenerateOptions& options) const {
  if (text.out.ended) {
    // A sequence that has ended continues to grow, unreported, so that all have the same length.
    text.ids.push_back(text.ids.back());
    return;
  }
  const std::vector<std::int32_t> stops = ends(options);
  const std::int64_t step = text.steps++;
  const auto next =
      options.rules.any()
          ? choose(logits_V, vocabulary(), options, {text.seen, text.given}, stops, text.seed, step)
          : static_cast<std::int32_t>(
                ops::sample_token(logits_V, vocabulary(), options.sampler, text.seed, step));
  text.ids.push_back(next);
  text.seen.push_back(next);
  Generated& out = text.out;
  out.ended = std::find(stops.begin(), stops.end(), next) != stops.end();
  if (out.ended) return;
  out.tokens.push_back(next);
  const std::string_view bytes = tokenizer_.bytes_of(next);
  const bool hidden = hides(next, options);
  if (!hidden) out.text += bytes;
  out.ended = text.bytes.append(bytes, hidden, options.stop_strings);
  if (out.ended) out.text = text.bytes.shown();
}

/// `on_token` receives the tokens of the first sequence.
std::vector<Generated> Generator::make(std::vector<std::int32_t> prompt,
                                       const GenerateOptions& options,
                                       int count,
                                       const std::function<void(std::int32_t)>& on_token) {
  std::vector<Text> texts;
  for (int i = 0; i < count; ++i)
    texts.push_back(begun(prompt, options.seed + static_cast<std::uint64_t>(i)));
  Text& first = texts.front();
  double prompt_s = 0, decode_s = 0;
  std::optional<nn::StepContext> context;
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    if (std::ranges::all_of(texts, [](const Text& text) { return text.out.ended; })) break;
    const double start = now_s();
    const bool fresh = !context || first.cached == room();
    if (fresh) {
      context.emplace(nn::Mode::Prefill, options.seed);
      for (Text& text : texts)
        begin_window(text, options, *context);
    } else {
      context->set_mode(nn::Mode::Decode);
    }
    context->position = first.cached;
    const std::size_t tokens = fresh ? first.ids.size() : 1;
    std::vector<std::vector<std::int32_t>> read;
    for (const Text& text : texts)
      read.emplace_back(text.ids.end() - static_cast<std::ptrdiff_t>(tokens), text.ids.end());
    const at::Tensor logits =
        next_logits(batch_of(first.prompt, read, tokens, /*reads=*/fresh), *context, options);
    for (std::size_t s = 0; s < texts.size(); ++s) {
      texts[s].cached += static_cast<std::int64_t>(tokens);
      take(texts[s], logits.select(0, static_cast<std::int64_t>(s)), options);
    }
    (i == 0 ? prompt_s : decode_s) += now_s() - start;
    if (on_token && !first.out.ended) on_token(first.out.tokens.back());
  }
  std::vector<Generated> out;
  for (Text& text : texts) {
    out.push_back(std::move(text.out));
    out.back().prompt_s = prompt_s;
    out.back().decode_s = decode_s;
  }
  return out;
}

void Generator::read_alone(Text& text, const GenerateOptions& options, Cached& cached) {
  const double start = now_s();
  nn::StepContext& context = cached.context;
  if (text.cached > 0) cached.tables.end(text.pages);
  const std::int64_t capacity = context.cache_capacity;
  begin_window(text, options, context);
  context.cache_capacity = capacity;
  text.pages = cached.tables.begin(std::ssize(text.ids));
  context.set_mode(nn::Mode::Prefill);
  context.position = 0;
  nn::Batch batch = batch_of(text.prompt, {text.ids}, text.ids.size(), /*reads=*/true);
  set_rows(batch, cached.tables, {text.pages});
  const at::Tensor logits = next_logits(std::move(batch), context, options, {text.adapter});
  text.cached = std::ssize(text.ids);
  const bool first = text.steps == 0;
  take(text, logits.select(0, 0), options);
  (first ? text.out.prompt_s : text.out.decode_s) += now_s() - start;
}

void Generator::go_on(const std::vector<Text*>& texts,
                      const GenerateOptions& options,
                      Cached& cached) {
  const double start = now_s();
  nn::StepContext& context = cached.context;
  std::vector<std::vector<std::int32_t>> read;
  context.set_mode(nn::Mode::Decode);
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> positions, adapters;
  for (const Text* text : texts) {
    adapters.push_back(text->adapter);
    read.push_back({text->ids.back()});
    rows.push_back(text->pages);
    positions.push_back(text->cached);
    cached.tables.make_room(text->pages, text->cached);
  }
  context.position = std::ranges::max(positions);
  nn::Batch batch = batch_of({}, read, 1, /*reads=*/false);
  set_rows(batch, cached.tables, rows);
  batch.set(nn::kTextPosition, at::tensor(positions, at::kLong));
  const at::Tensor logits = next_logits(std::move(batch), context, options, std::move(adapters));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    ++texts[i]->cached;
    take(*texts[i], logits.select(0, static_cast<std::int64_t>(i)), options);
  }
  const double passed = now_s() - start;
  for (Text* text : texts)
    text->out.decode_s += passed;
}

void Generator::run_prompts(
    const std::vector<Asked>& asked,
    const GenerateOptions& options,
    int at_once,
    const std::function<void(std::size_t number, Generated made)>& on_text) {
  TESSERA_REQUIRE(
      at_once >= 1, Config, fmt::format("{} texts at once: expected 1 or more", at_once), "");
  Cached cached(options.seed);
  std::vector<Text> texts;  // sequences being generated
  for (std::size_t next = 0; next < asked.size() || !texts.empty();) {
    for (; next < asked.size() && std::ssize(texts) < at_once; ++next) {
      texts.push_back(begun(asked[next].prompt, asked[next].seed));
      texts.back().number = next;
      texts.back().adapter = asked[next].adapter;
    }
    for (Text& text : texts) {
      if (!text.done(options) && (text.cached == 0 || text.cached == room()))
        read_alone(text, options, cached);
    }
    std::vector<Text*> going;
    for (Text& text : texts) {
      if (!text.done(options) && text.cached < room()) going.push_back(&text);
    }
    if (!going.empty()) go_on(going, options, cached);
    std::erase_if(texts, [&](Text& text) {
      if (!text.done(options)) return false;
      if (text.cached > 0) cached.tables.end(text.pages);
      on_text(text.number, std::move(text.out));
      return true;
    });
  }
}

}  // namespace tessera::engine
