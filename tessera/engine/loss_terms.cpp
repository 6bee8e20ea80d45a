// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/loss_terms.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/denominators.h"

namespace tessera::engine {
namespace {

/// The ranks over which the tokens of a global batch are distributed; ranks with the same
/// micro-batch are adjacent.
constexpr mesh::AxisSet kTokens = mesh::AxisSet::tokens();

bool same_term(const TermKey& a, int block, const std::string& name) {
  return a.block == block && a.name == name;
}

bool contains(const std::vector<TermKey>& keys, int block, const std::string& name) {
  return std::any_of(
      keys.begin(), keys.end(), [&](const TermKey& key) { return same_term(key, block, name); });
}

void add(std::vector<TermKey>& keys, TermKey key) {
  if (!contains(keys, key.block, key.name)) keys.push_back(std::move(key));
}

TermKey key_of(const parallel::TermValues& term) {
  return {term.block, term.name, term.denominator, term.weight};
}

/// Encodes keys as numbers: their count, then for each its block, denominator, weight, and the
/// length and bytes of its name.
std::vector<double> encode(const std::vector<TermKey>& keys) {
  std::vector<double> out = {static_cast<double>(keys.size())};
  for (const TermKey& key : keys) {
    out.insert(out.end(),
               {static_cast<double>(key.block),
                static_cast<double>(key.denominator),
                key.weight,
                static_cast<double>(key.name.size())});
    for (const char c : key.name)
      out.push_back(static_cast<double>(static_cast<unsigned char>(c)));
  }
  return out;
}

void decode(const double* from, std::vector<TermKey>& keys) {
  const auto count = static_cast<std::size_t>(*from++);
  for (std::size_t i = 0; i < count; ++i) {
    TermKey key;
    key.block = static_cast<int>(*from++);
    key.denominator = static_cast<int>(*from++);
    key.weight = *from++;
    const auto length = static_cast<std::size_t>(*from++);
    for (std::size_t c = 0; c < length; ++c)
      key.name.push_back(static_cast<char>(static_cast<unsigned char>(*from++)));
    add(keys, std::move(key));
  }
}

/// The metric of that name; appended if it is new.
Metric& metric_of(Metrics& metrics, const TermKey& key, const std::vector<double>& denominators) {
  if (Metric* const known = find_metric(metrics, key.name)) return *known;
  const std::size_t d = nn::denominator_index(key.denominator, denominators.size());
  return metrics.emplace_back(
      Metric{key.name, 0.0, d < denominators.size() ? denominators[d] : 0.0});
}

}  // namespace

const Metric* find_metric(const Metrics& metrics, std::string_view name) {
  const auto at = std::find_if(
      metrics.begin(), metrics.end(), [&](const Metric& metric) { return metric.name == name; });
  return at == metrics.end() ? nullptr : &*at;
}

Metric* find_metric(Metrics& metrics, std::string_view name) {
  return const_cast<Metric*>(find_metric(std::as_const(metrics), name));
}

std::string metrics_text(const Metrics& metrics) {
  std::string out;
  if (metrics.size() < 2) return out;
  for (const Metric& metric : metrics) {
    if (metric.name == "loss") continue;
    out += fmt::format(" | {} {:.4f}", metric.name, text::unsigned_nan(metric.mean));
  }
  return out;
}

std::vector<TermKey> agree_on_terms(comm::World& world,
                                    const comm::Group& group,
                                    const std::vector<TermKey>& mine,
                                    int objective) {
  std::vector<double> encoded = encode(mine);
  const std::vector<double> longest = world.all_reduce(group,
                                                       {static_cast<double>(encoded.size())},
                                                       comm::Op::Max,
                                                       TESSERA_HERE("number of loss terms"));
  const auto width = static_cast<std::size_t>(longest.front());
  encoded.resize(width, 0.0);
  const std::vector<double> all =
      world.all_gather(group, encoded, TESSERA_HERE("names of the loss terms"));
  std::vector<TermKey> keys;
  for (std::size_t at = 0; at < all.size(); at += width)
    decode(all.data() + at, keys);
  const auto place = [objective](const TermKey& key) {
    return key.block == objective ? -1 : key.block;
  };
  std::stable_sort(keys.begin(), keys.end(), [&](const TermKey& a, const TermKey& b) {
    return place(a) < place(b);
  });
  return keys;
}

std::vector<double> values_in_order(const std::vector<TermKey>& keys,
                                    const std::vector<parallel::TermValues>& terms,
                                    std::size_t each) {
  std::vector<double> out(keys.size() * each, 0.0);
  for (const parallel::TermValues& term : terms) {
    TESSERA_ASSERT(term.values.size() == each);
    const auto at = std::find_if(keys.begin(), keys.end(), [&](const TermKey& key) {
      return same_term(key, term.block, term.name);
    });
    TESSERA_ASSERT(at != keys.end());
    const auto key = static_cast<std::size_t>(at - keys.begin());
    std::copy(term.values.begin(),
              term.values.end(),
              out.begin() + static_cast<std::ptrdiff_t>(key * each));
  }
  return out;
}

bool TermReduction::has_new(const parallel::StepOutput& out) const {
  return std::any_of(out.terms.begin(), out.terms.end(), [&](const parallel::TermValues& term) {
    return !contains(known_, term.block, term.name);
  });
}

Metrics TermReduction::reduce(const parallel::StepOutput& out,
                              int num_micros,
                              double loss,
                              bool any_new) {
  if (any_new) {
    std::vector<TermKey> mine = known_;
    for (const parallel::TermValues& term : out.terms)
      add(mine, key_of(term));
    known_ = agree_on_terms(world_, world_.everyone(), mine, objective_);
  }
  Metrics metrics;
  if (known_.size() == 1 && known_.front().weight == 1.0) {
    metric_of(metrics, known_.front(), out.denominators).mean = loss;
    return metrics;
  }
  const auto micros = static_cast<std::size_t>(num_micros);
  std::vector<double> mine = values_in_order(known_, out.terms, micros);
  if (stages_ > 1) {
    // A block's term is on one stage and zero on the others, so that this sum is exact.
    mine = world_.all_reduce(world_.group({mesh::Axis::Pp}),
                             std::move(mine),
                             comm::Op::Sum,
                             TESSERA_HERE("loss terms of the stages"));
  }
  // Sums over the blocks of a micro-batch first, then over micro-batches in their global order, as
  // for the loss.
  for (const TermKey& key : known_)
    metric_of(metrics, key, out.denominators);
  std::vector<double> by_name(metrics.size() * micros, 0.0);
  for (std::size_t k = 0; k < known_.size(); ++k) {
    const auto n = static_cast<std::size_t>(find_metric(std::as_const(metrics), known_[k].name) -
                                            metrics.data());
    for (std::size_t m = 0; m < micros; ++m)
      by_name[n * micros + m] += mine[k * micros + m];
  }
  const std::vector<double> all =
      world_.all_gather(world_.group(kTokens), by_name, TESSERA_HERE("terms of the loss"));
  for (std::size_t n = 0; n < metrics.size(); ++n) {
    for (std::size_t m = 0; m < micros; ++m) {
      for (std::size_t r = 0; r < all.size(); r += by_name.size())
        metrics[n].mean += all[r + n * micros + m];
    }
  }
  return metrics;
}

}  // namespace tessera::engine
