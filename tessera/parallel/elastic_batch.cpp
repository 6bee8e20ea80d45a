// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/elastic_batch.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/text.h"

namespace tessera::parallel {
namespace {

constexpr const char* kSizes = "elasticity.micro_batch_sizes";
constexpr double kCountsRanks = 0.1, kCountsNodes = 0.2;
constexpr std::int64_t kMostBatch = 1'000'000'000;
constexpr std::size_t kMostSizes = 256;

/// The highly composite numbers (each has more divisors than any smaller number) of DeepSpeed's
/// elasticity. DeepSpeed's list omits some, and this one must be equal to it.
constexpr auto kHighlyComposite = std::to_array<std::int64_t>(
    {1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
     180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
     10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
     166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720});

using Sizes = std::vector<std::int64_t>;

/// The largest multiple of `base` by a highly composite number that is at most `most`.
std::int64_t candidate(std::int64_t base, std::int64_t most) {
  std::int64_t best = base;
  for (const std::int64_t factor : kHighlyComposite) {
    if (base * factor > most) break;
    best = base * factor;
  }
  return best;
}

/// The numbers from `least` to `most` that divide batch / micro for some micro, ascending.
Sizes sharers(std::int64_t batch, const Sizes& micros, std::int64_t least, std::int64_t most) {
  std::set<std::int64_t> found;
  const auto add = [&](std::int64_t count) {
    if (count >= least && count <= most) found.insert(count);
  };
  for (const std::int64_t micro : micros) {
    if (batch % micro != 0) continue;
    const std::int64_t whole = batch / micro;
    for (std::int64_t i = 1; i * i <= whole; ++i) {
      if (whole % i != 0) continue;
      add(i);
      add(whole / i);
    }
  }
  return {found.begin(), found.end()};
}

struct Choice {
  std::int64_t batch = 0;
  Sizes sharers;
};

/// The batch that the most numbers of sharers divide.
Choice choose(const Sizes& micros,
              std::int64_t most,
              std::int64_t least_sharers,
              std::int64_t most_sharers,
              bool larger) {
  Sizes bases = micros;
  std::int64_t multiple = 1;
  for (const std::int64_t micro : micros) {
    multiple = std::lcm(multiple, micro);
    if (multiple > kMostBatch) break;
  }
  bases.push_back(multiple);
  Choice best;
  for (const std::int64_t base : bases) {
    if (base > kMostBatch) continue;
    const std::int64_t batch = candidate(base, most);
    Sizes found = sharers(batch, micros, least_sharers, most_sharers);
    const bool better = larger ? batch > best.batch : batch < best.batch;
    if (found.size() < best.sharers.size() || found.empty()) continue;
    if (found.size() > best.sharers.size() || better) best = {batch, std::move(found)};
  }
  return best;
}

class Solver {
 public:
  Solver(const ElasticityOptions& options,
         config::Problems& problems,
         const config::Origins& origins)
      : options_(options), problems_(problems), origins_(origins) {}

  std::optional<ElasticBatch> solve(std::int64_t ranks, std::int64_t data_ranks) {
    const std::optional<Sizes> micros = read_sizes();
    if (!micros || !check(ranks, data_ranks)) return std::nullopt;
    const bool nodes = options_.version == kCountsNodes;
    // Ranks of a node that are data-parallel with each other.
    const std::int64_t unit = nodes ? options_.num_gpus_per_node / options_.model_parallel_size : 1;
    const std::int64_t per_node = nodes ? options_.num_gpus_per_node : 1;
    const std::int64_t most = options_.max_train_batch_size / unit;
    if (const std::int64_t largest = *std::max_element(micros->begin(), micros->end());
        largest > most) {
      refuse(kSizes,
             fmt::format("{} is larger than elasticity.max_train_batch_size {}{}",
                         largest,
                         options_.max_train_batch_size,
                         unit > 1 ? fmt::format(" / {} ranks of a node", unit) : ""),
             "raise elasticity.max_train_batch_size");
      return std::nullopt;
    }
    Choice choice = choose(*micros,
                           most,
                           options_.min_gpus / per_node,
                           options_.max_gpus / per_node,
                           options_.prefer_larger_batch);
    ElasticBatch out{choice.batch * unit, 0, std::move(choice.sharers)};
    for (std::int64_t& count : out.data_ranks)
      count *= unit;
    const bool fits = std::binary_search(out.data_ranks.begin(), out.data_ranks.end(), data_ranks);
    if (!fits && nodes) out = own_batch(*micros, ranks / per_node * unit);
    if ((fits || nodes) && out.global > 0) out.micro = micro_of(*micros, out.global / ranks);
    if (out.micro > 0) return out;
    refuse("elasticity",
           fmt::format("{} ranks cannot share a batch of {} in micro-batches of {}",
                       data_ranks,
                       out.global,
                       fmt::join(*micros, ", ")),
           out.data_ranks.empty()
               ? "change elasticity.micro_batch_sizes or elasticity.max_train_batch_size"
               : "use one of these numbers of data-parallel ranks: " + some_of(out.data_ranks));
    return std::nullopt;
  }

 private:
  void refuse(const std::string& path, const std::string& what, const std::string& fix) {
    problems_.add(origins_.place(path), path, what, fix);
  }

  std::optional<Sizes> read_sizes() {
    if (options_.micro_batch_sizes.is_null()) return Sizes{2, 4, 6};
    Sizes out;
    const json::Value& list = options_.micro_batch_sizes;
    bool good = list.is_array() && !list.items().empty() && list.items().size() <= kMostSizes;
    for (std::size_t i = 0; good && i < list.items().size(); ++i) {
      const json::Value& item = list.items()[i];
      const std::int64_t size = item.is_number() ? item.as_integer().value_or(0) : 0;
      good = size >= 1 && size <= kMostBatch;
      out.push_back(size);
    }
    if (good) return out;
    refuse(kSizes,
           fmt::format("{} is not a list of 1 to {} sizes", list.dump().substr(0, 200), kMostSizes),
           "for example [2, 4, 6]");
    return std::nullopt;
  }

  bool check(std::int64_t ranks, std::int64_t data_ranks) {
    const std::int64_t per_model = ranks / std::max<std::int64_t>(1, data_ranks);
    if (options_.version != kCountsRanks && options_.version != kCountsNodes) {
      refuse("elasticity.version",
             fmt::format("{}: expected 0.1 or 0.2", text::number(options_.version)),
             "use 0.2");
    } else if (options_.min_gpus > options_.max_gpus) {
      refuse("elasticity.min_gpus",
             fmt::format(
                 "{} is larger than elasticity.max_gpus {}", options_.min_gpus, options_.max_gpus),
             "lower it");
    } else if (options_.model_parallel_size != 1 && options_.version == kCountsRanks) {
      refuse("elasticity.model_parallel_size",
             "version 0.1 counts ranks that each have the whole model",
             "set elasticity.version to 0.2");
    } else if (options_.model_parallel_size != per_model) {
      refuse("elasticity.model_parallel_size",
             fmt::format("{} ranks would share a model, and with `parallel` {} do",
                         options_.model_parallel_size,
                         per_model),
             fmt::format("set it to {}", per_model));
    } else if (options_.num_gpus_per_node % options_.model_parallel_size != 0) {
      refuse("elasticity.num_gpus_per_node",
             fmt::format("{} is not a multiple of elasticity.model_parallel_size {}",
                         options_.num_gpus_per_node,
                         options_.model_parallel_size),
             "set it to the number of slots of a host");
    } else {
      return true;
    }
    return false;
  }

  /// The batch of version 0.2 for ranks that cannot share the common one.
  [[nodiscard]] ElasticBatch own_batch(const Sizes& micros, std::int64_t data_ranks) const {
    ElasticBatch out{0, 0, {data_ranks}};
    for (const std::int64_t micro : micros) {
      const std::int64_t step = micro * data_ranks;
      if (step == 0) continue;
      const std::int64_t batch = options_.max_train_batch_size / step * step;
      const bool better = options_.prefer_larger_batch ? batch > out.global : batch < out.global;
      if (out.global == 0 || better) out.global = batch;
    }
    return out;
  }

  /// The largest size, or without prefer_larger_batch in version 0.2 the first one, that divides
  /// the share of a rank; 0: none.
  [[nodiscard]] std::int64_t micro_of(const Sizes& micros, std::int64_t share) const {
    const bool largest = options_.prefer_larger_batch || options_.version == kCountsRanks;
    std::int64_t best = 0;
    for (const std::int64_t micro : micros) {
      if (share % micro == 0 && (best == 0 || (largest && micro > best))) best = micro;
    }
    return share > 0 ? best : 0;
  }

  static std::string some_of(const Sizes& counts) {
    constexpr std::size_t kShown = 24;
    const Sizes shown(
        counts.begin(),
        counts.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, counts.size())));
    return fmt::format("{}{}", fmt::join(shown, ", "), counts.size() > kShown ? ", ..." : "");
  }

  const ElasticityOptions& options_;
  config::Problems& problems_;
  const config::Origins& origins_;
};

}  // namespace

void ElasticityOptions::describe(config::Fields& f) {
  f.field("enabled",
          enabled,
          {.text = "Choose train_batch_size, the micro-batch and the accumulation such that many "
                   "numbers of ranks share the same batch; those keys must then be absent."});
  f.field("max_train_batch_size",
          max_train_batch_size,
          {.text = "The largest global batch.", .unit = "sequences", .min = 1, .max = kMostBatch});
  f.field("micro_batch_sizes",
          micro_batch_sizes,
          {.text = "Micro-batches to choose from.",
           .default_text = "[2, 4, 6]",
           .type = "list of integers"});
  f.field(
      "min_gpus", min_gpus, {.text = "The least number of ranks.", .min = 1, .max = kMostBatch});
  f.field(
      "max_gpus", max_gpus, {.text = "The largest number of ranks.", .min = 1, .max = kMostBatch});
  f.field(
      "min_time",
      min_time,
      {.text = "A host that comes back joins an elastic training (run.min_hosts) at the earliest "
               "this long after the ranks last started.",
       .unit = "minutes",
       .min = 0,
       .max = 1e6});
  f.field(
      "prefer_larger_batch",
      prefer_larger_batch,
      {.text = "Of two batches that equally many numbers of ranks share, take the larger one."});
  f.field("version",
          version,
          {.text = "0.1 counts ranks; 0.2 counts nodes of num_gpus_per_node ranks, and gives a "
                   "number of ranks that does not fit a batch of its own.",
           .min = 0,
           .max = 1});
  f.field("ignore_non_elastic_batch_info",
          ignore_non_elastic_batch_info,
          {.text = "Replace the batch keys if they are given instead of refusing them."});
  f.field("num_gpus_per_node",
          num_gpus_per_node,
          {.text = "Ranks of a node, for version 0.2.", .min = 1, .max = 1e6});
  f.field("model_parallel_size",
          model_parallel_size,
          {.text = "Ranks that share a model, for version 0.2.", .min = 1, .max = 1e6});
}

std::optional<ElasticBatch> elastic_batch(const ElasticityOptions& options,
                                          std::int64_t ranks,
                                          std::int64_t data_ranks,
                                          config::Problems& problems,
                                          const config::Origins& origins) {
  return Solver(options, problems, origins).solve(ranks, data_ranks);
}

}  // namespace tessera::parallel
