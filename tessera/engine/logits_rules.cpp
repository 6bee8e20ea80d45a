// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/logits_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace tessera::engine {
namespace {

constexpr double kRemoved = -std::numeric_limits<double>::infinity();

double& at(std::span<double> logits, std::int32_t id) {
  return logits[static_cast<std::size_t>(id)];
}
bool is_id(std::span<double> logits, std::int32_t id) {
  return id >= 0 && static_cast<std::size_t>(id) < logits.size();
}

/// The ids sorted by value, descending or ascending.
std::vector<std::size_t> sorted_ids(std::span<const double> values, bool descending) {
  std::vector<std::size_t> ids(values.size());
  std::iota(ids.begin(), ids.end(), std::size_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](std::size_t a, std::size_t b) {
    return descending ? values[a] > values[b] : values[a] < values[b];
  });
  return ids;
}

/// The k-th largest value.
double nth_largest(std::span<const double> logits, std::size_t k) {
  std::vector<double> copy(logits.begin(), logits.end());
  const auto place = copy.begin() + static_cast<std::ptrdiff_t>(std::min(k, copy.size()) - 1);
  std::nth_element(copy.begin(), place, copy.end(), std::greater<>());
  return *place;
}

/// Removes tokens below a probability, except the `keep` most likely ones.
void keep_above(std::span<double> logits,
                std::span<const double> probabilities,
                double least,
                std::size_t keep) {
  const double safe = nth_largest(logits, keep);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (probabilities[i] < least && logits[i] < safe) logits[i] = kRemoved;
  }
}

}  // namespace

bool LogitsRules::any() const {
  return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0 ||
         no_repeat_ngram > 0 || !bad_words.empty() || min_new_tokens > 0 || min_p > 0.0 ||
         typical_p < 1.0 || epsilon_cutoff > 0.0 || eta_cutoff > 0.0;
}

std::vector<double> softmax(std::span<const double> logits) {
  std::vector<double> out(logits.begin(), logits.end());
  const double most = *std::max_element(out.begin(), out.end());
  double sum = 0.0;
  for (double& value : out)
    sum += value = std::exp(value - most);
  for (double& value : out)
    value /= sum;
  return out;
}

void log_softmax(std::span<double> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double value : logits)
    sum += std::exp(value - most);
  const double all = most + std::log(sum);
  for (double& value : logits)
    value -= all;
}

void apply_repetition_penalty(std::span<double> logits, const TokenHistory& seen, double penalty) {
  for (const std::int32_t id : std::set<std::int32_t>(seen.ids.begin(), seen.ids.end())) {
    if (!is_id(logits, id)) continue;
    double& logit = at(logits, id);
    logit = logit < 0 ? logit * penalty : logit / penalty;
  }
}

void apply_count_penalties(std::span<double> logits,
                           const TokenHistory& seen,
                           double frequency,
                           double presence) {
  std::map<std::int32_t, std::int64_t> counts;
  for (const std::int32_t id : seen.ids.subspan(seen.prompt))
    ++counts[id];
  for (const auto& [id, count] : counts) {
    if (is_id(logits, id)) at(logits, id) -= frequency * static_cast<double>(count) + presence;
  }
}

void remove_repeated_ngrams(std::span<double> logits, const TokenHistory& seen, std::int64_t size) {
  const auto before = static_cast<std::size_t>(size - 1);
  const auto& ids = seen.ids;
  if (ids.size() < before + 1) return;
  const auto last = ids.subspan(ids.size() - before);
  for (std::size_t i = 0; i + before < ids.size(); ++i) {
    const bool same =
        std::equal(last.begin(), last.end(), ids.begin() + static_cast<std::ptrdiff_t>(i));
    if (same && is_id(logits, ids[i + before])) at(logits, ids[i + before]) = kRemoved;
  }
}

void remove_bad_words(std::span<double> logits,
                      const TokenHistory& seen,
                      const std::vector<std::vector<std::int32_t>>& words) {
  for (const std::vector<std::int32_t>& word : words) {
    if (word.empty() || !is_id(logits, word.back())) continue;
    if (word.size() > 1 && word.size() > seen.ids.size()) continue;
    const auto last = seen.ids.subspan(seen.ids.size() - (word.size() - 1));
    if (std::equal(last.begin(), last.end(), word.begin())) at(logits, word.back()) = kRemoved;
  }
}

void remove_ends_before(std::span<double> logits,
                        const TokenHistory& seen,
                        std::int64_t min_new_tokens,
                        std::span<const std::int32_t> ends) {
  if (static_cast<std::int64_t>(seen.ids.size() - seen.prompt) >= min_new_tokens) return;
  for (const std::int32_t end : ends) {
    if (is_id(logits, end)) at(logits, end) = kRemoved;
  }
}

void apply_temperature(std::span<double> logits, double temperature) {
  for (double& logit : logits)
    logit /= temperature;
}

void keep_top_k(std::span<double> logits, std::int64_t k, std::size_t keep) {
  const double least = nth_largest(logits, std::max(static_cast<std::size_t>(k), keep));
  for (double& logit : logits) {
    if (logit < least) logit = kRemoved;
  }
}

void keep_top_p(std::span<double> logits, double p, std::size_t keep) {
  const std::vector<double> probabilities = softmax(logits);
  const std::vector<std::size_t> ids = sorted_ids(logits, /*descending=*/false);
  double passed = 0.0;
  for (std::size_t i = 0; i + keep < ids.size(); ++i) {
    passed += probabilities[ids[i]];
    if (passed > 1.0 - p) break;
    logits[ids[i]] = kRemoved;
  }
}

void keep_min_p(std::span<double> logits, double p, std::size_t keep) {
  const std::vector<double> probabilities = softmax(logits);
  const double least = p * *std::max_element(probabilities.begin(), probabilities.end());
  const std::vector<std::size_t> ids = sorted_ids(logits, /*descending=*/true);
  for (std::size_t i = keep; i < ids.size(); ++i) {
    if (probabilities[ids[i]] < least) logits[ids[i]] = kRemoved;
  }
}

void keep_typical(std::span<double> logits, double mass, std::size_t keep) {
  std::vector<double> information(logits.begin(), logits.end());
  log_softmax(information);
  double entropy = 0.0;
  for (const double log_p : information) {
    if (std::isfinite(log_p)) entropy -= log_p * std::exp(log_p);
  }
  std::vector<double> distance;
  for (const double log_p : information)
    distance.push_back(std::abs(-log_p - entropy));
  const std::vector<std::size_t> ids = sorted_ids(distance, /*descending=*/false);
  double passed = 0.0;
  std::size_t last = 0;
  for (const std::size_t id : ids) {
    passed += std::exp(information[id]);
    if (passed < mass) ++last;
  }
  last = std::min(last, ids.size() - 1);
  const double most = distance[ids[last]];
  for (std::size_t i = keep; i < ids.size(); ++i) {
    if (distance[ids[i]] > most) logits[ids[i]] = kRemoved;
  }
}

void keep_epsilon(std::span<double> logits, double epsilon, std::size_t keep) {
  const std::vector<double> probabilities = softmax(logits);
  keep_above(logits, probabilities, epsilon, keep);
}

void keep_eta(std::span<double> logits, double epsilon, std::size_t keep) {
  const std::vector<double> probabilities = softmax(logits);
  double entropy = 0.0;
  for (const double p : probabilities) {
    if (p > 0.0) entropy -= p * std::log(p);
  }
  keep_above(
      logits, probabilities, std::min(epsilon, std::sqrt(epsilon) * std::exp(-entropy)), keep);
}

void apply_rules(std::span<double> logits,
                 const LogitsRules& rules,
                 const TokenHistory& seen,
                 std::span<const std::int32_t> ends) {
  if (rules.repetition_penalty != 1.0)
    apply_repetition_penalty(logits, seen, rules.repetition_penalty);
  if (rules.frequency_penalty != 0.0 || rules.presence_penalty != 0.0)
    apply_count_penalties(logits, seen, rules.frequency_penalty, rules.presence_penalty);
  if (rules.no_repeat_ngram > 0) remove_repeated_ngrams(logits, seen, rules.no_repeat_ngram);
  if (!rules.bad_words.empty()) remove_bad_words(logits, seen, rules.bad_words);
  if (rules.min_new_tokens > 0) remove_ends_before(logits, seen, rules.min_new_tokens, ends);
}

}  // namespace tessera::engine
