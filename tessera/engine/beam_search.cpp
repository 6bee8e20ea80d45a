// SPDX-License-Identifier: Apache-2.0
// Beam search with the arithmetic of transformers.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/stop_strings.h"
#include "tessera/nn/kv_cache.h"

namespace tessera::engine {
namespace {

constexpr double kNone = -1e9;  // the score of an unused beam

struct Candidate {
  std::vector<std::int32_t> ids;
  double score = kNone;
  bool done = false;      ///< the sequence ends here: by a token, a stop string or its length
  bool stopped = false;   ///< a stop string occurs in its text
  std::int64_t beam = 0;  ///< the running beam that it continues
  GeneratedBytes bytes;   ///< only if there are stop strings
};

bool better(const Candidate& a, const Candidate& b) {
  return a.score > b.score;
}

/// The finished sequences, and whether the search continues.
class Search {
 public:
  Search(const GenerateOptions& options, std::size_t prompt) : options_(options), prompt_(prompt) {
    finished_.resize(static_cast<std::size_t>(options.beams));
    running_.resize(finished_.size());
  }

  void begin(const std::vector<std::int32_t>& ids) {
    for (Candidate& beam : running_)
      beam.ids = ids;
    running_.front().score = 0.0;
  }

  /// `best`: candidates in descending order of score, more than there are beams.
  void step(const std::vector<Candidate>& best) {
    std::vector<Candidate> all = finished_;
    const bool full = options_.early_stopping == EarlyStopping::Full && all_finished();
    for (std::size_t i = 0; i < finished_.size() && i < best.size(); ++i) {
      if (!best[i].done || full || !can_improve_) continue;
      all.push_back(best[i]);
      all.back().score = best[i].score / scale(length(best[i]));
    }
    std::stable_sort(all.begin(), all.end(), better);
    all.resize(finished_.size());
    finished_ = std::move(all);
    running_.clear();
    for (const Candidate& one : best) {
      if (!one.done && running_.size() < finished_.size()) running_.push_back(one);
    }
    if (!running_.empty()) update_can_improve();
  }

  [[nodiscard]] bool goes_on() const {
    const bool open = options_.early_stopping != EarlyStopping::Full || !all_finished();
    return can_improve_ && open && !running_.empty();
  }
  [[nodiscard]] const std::vector<Candidate>& running() const { return running_; }
  [[nodiscard]] const std::vector<Candidate>& finished() const { return finished_; }

 private:
  [[nodiscard]] std::size_t length(const Candidate& one) const { return one.ids.size() - prompt_; }
  [[nodiscard]] double scale(std::size_t length) const {
    return std::pow(static_cast<double>(length), options_.length_penalty);
  }
  [[nodiscard]] bool all_finished() const {
    return std::all_of(
        finished_.begin(), finished_.end(), [](const Candidate& one) { return one.done; });
  }
  void update_can_improve() {
    const bool longest =
        options_.early_stopping == EarlyStopping::Never && options_.length_penalty > 0.0;
    const std::size_t hypothetical =
        longest ? static_cast<std::size_t>(options_.max_new_tokens) : length(running_.front());
    const double possible = running_.front().score / scale(hypothetical);
    const double worst = all_finished() ? finished_.back().score : kNone;
    can_improve_ = can_improve_ && possible > worst;
  }

  const GenerateOptions& options_;
  std::size_t prompt_;
  bool can_improve_ = true;
  std::vector<Candidate> running_, finished_;
};

/// Returns the row of the KV cache that each running beam continues. There are as many rows as
/// there were beams initially.
at::Tensor cache_rows(const std::vector<Candidate>& running, std::size_t width) {
  std::vector<std::int64_t> rows(width);
  for (std::size_t b = 0; b < running.size(); ++b)
    rows[b] = running[b].beam;
  return at::tensor(rows, at::kLong);
}

}  // namespace

std::vector<Generator::Beam> Generator::run_beams(const std::vector<std::int32_t>& given,
                                                  const GenerateOptions& options,
                                                  int count) {
  TESSERA_REQUIRE(options.beams >= 1 && count >= 1 && count <= options.beams,
                  Config,
                  fmt::format("{} texts of {} beams", count, options.beams),
                  "ask for at most as many texts as there are beams");
  std::vector<std::int32_t> read = given;
  if (read.empty()) read.push_back(tokenizer_.end_of_text());
  check_prompt(read);
  const std::vector<std::int32_t> ids = first_tokens(read);
  const auto prompt = static_cast<std::int64_t>(ids.size());
  TESSERA_REQUIRE(answers() || prompt + options.max_new_tokens <= model_.max_positions,
                  Config,
                  fmt::format("a prompt of {} tokens and {} new ones in a model of {} positions",
                              prompt,
                              options.max_new_tokens,
                              model_.max_positions),
                  "beam search needs a text that fits; ask for fewer new tokens");
  const std::vector<std::int32_t> stops = ends(options);
  const std::int64_t vocab = vocabulary();
  const auto width = static_cast<std::size_t>(options.beams);
  const double start = now_s();
  Search search(options, ids.size());
  search.begin(ids);
  nn::StepContext context(nn::Mode::Prefill, options.seed);
  context.cache_capacity = prompt + options.max_new_tokens;
  for (std::int64_t made = 0; made < options.max_new_tokens && search.goes_on(); ++made) {
    const bool reads = made == 0;
    std::vector<std::vector<std::int32_t>> texts;
    for (const Candidate& beam : search.running())
      texts.push_back(beam.ids);
    const std::size_t beams = texts.size();
    texts.resize(width, texts.back());
    const std::size_t tokens = reads ? ids.size() : 1;
    context.set_mode(reads ? nn::Mode::Prefill : nn::Mode::Decode);
    nn::Batch batch = batch_of(read, texts, tokens, reads);
    if (!reads) batch.set(nn::kCacheRow, cache_rows(search.running(), width));
    const at::Tensor logits = next_logits(batch, context, options)
                                  .narrow(1, 0, vocab)
                                  .to(at::kCPU, at::kDouble)
                                  .contiguous();
    std::vector<std::pair<double, std::int64_t>> scores;
    for (std::size_t b = 0; b < beams; ++b) {
      const auto* data = logits.data_ptr<double>() + static_cast<std::int64_t>(b) * vocab;
      std::vector<double> row(data, data + vocab);
      log_softmax(row);
      apply_rules(row, options.rules, {texts[b], ids.size()}, stops);
      for (std::int64_t id = 0; id < vocab; ++id) {
        scores.emplace_back(row[static_cast<std::size_t>(id)] + search.running()[b].score,
                            static_cast<std::int64_t>(b) * vocab + id);
      }
    }
    const std::size_t kept =
        std::min(scores.size(), std::max<std::size_t>(2, 1 + stops.size()) * width);
    std::partial_sort(scores.begin(),
                      scores.begin() + static_cast<std::ptrdiff_t>(kept),
                      scores.end(),
                      [](const auto& a, const auto& b) {
                        return a.first != b.first ? a.first > b.first : a.second < b.second;
                      });
    std::vector<Candidate> best;
    for (std::size_t i = 0; i < kept; ++i) {
      const auto next = static_cast<std::int32_t>(scores[i].second % vocab);
      const std::int64_t beam = scores[i].second / vocab;
      Candidate one{.ids = texts[static_cast<std::size_t>(beam)], .score = scores[i].first};
      one.beam = beam;
      one.ids.push_back(next);
      const bool ended = std::find(stops.begin(), stops.end(), next) != stops.end();
      if (!ended && !options.stop_strings.empty()) {
        one.bytes = search.running()[static_cast<std::size_t>(beam)].bytes;
        one.stopped =
            one.bytes.append(tokenizer_.bytes_of(next), hides(next, options), options.stop_strings);
      }
      one.done = ended || one.stopped || made + 1 == options.max_new_tokens;
      best.push_back(std::move(one));
    }
    search.step(best);
    context.position += static_cast<std::int64_t>(tokens);
  }
  std::vector<Beam> out;
  for (const Candidate& one : search.finished()) {
    if (static_cast<int>(out.size()) == count || one.ids.empty()) break;
    Beam beam;
    beam.score = one.score;
    beam.made.tokens.assign(one.ids.begin() + prompt, one.ids.end());
    const bool by_id = std::find(stops.begin(), stops.end(), one.ids.back()) != stops.end();
    beam.made.ended = by_id || one.stopped;
    if (by_id) beam.made.tokens.pop_back();
    std::vector<std::int32_t> shown = beam.made.tokens;
    std::erase_if(shown, [&](std::int32_t id) { return hides(id, options); });
    beam.made.text = tokenizer_.decode(shown);
    if (one.stopped) {
      // The text of the decoder does not contain a stop string that lies in hidden tokens.
      const std::size_t end = find_stop(beam.made.text, options.stop_strings);
      beam.made.text = end == std::string::npos ? one.bytes.shown() : beam.made.text.substr(0, end);
    }
    beam.made.decode_s = now_s() - start;
    out.push_back(std::move(beam));
  }
  // The rules removed every token before a text was finished: what is left is the prompt alone.
  if (out.empty()) out.push_back({.made = {}, .score = kNone});
  return out;
}

}  // namespace tessera::engine
