// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/parallel/probe_cache.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::tune {
namespace {

constexpr std::array kMetrics = {std::pair("throughput", Metric::Throughput),
                                 std::pair("latency", Metric::Latency),
                                 std::pair("flops", Metric::Flops),
                                 std::pair("memory", Metric::Memory),
                                 std::pair("cost", Metric::Cost)};

/// A schedule, its chunks, and the share of a stage's passes that it waits once in a step.
struct Schedule {
  const char* name;
  int chunks;
  double bubble;  ///< in passes of all chunks, for each stage after the first
};
// gpipe is left out: it takes as long as 1f1b and keeps more activations.
constexpr std::array kSchedules = {Schedule{"1f1b", 1, 1.0},
                                   Schedule{"interleaved", 2, 0.5},
                                   Schedule{"interleaved", 3, 1.0 / 3},
                                   Schedule{"interleaved", 4, 0.25},
                                   Schedule{"zb-h1", 1, 1.0 / 3},
                                   Schedule{"zb-v", 2, 0.0}};

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d * d != n) out.push_back(n / d);
  }
  std::ranges::sort(out);
  return out;
}

bool is_power_of_two(std::int64_t n) {
  return (n & (n - 1)) == 0;
}

/// The sums over all blocks of a model whose layers and tokens are shared in one way, for a
/// micro-batch of one sample (of `unit` samples).
struct ShapeWork {
  std::string refused;  ///< the reason why ranks cannot share the model so; empty: they can
  std::int64_t unit = 1;
  double forward = 0, backward = 0, attention = 0;  ///< seconds
  double elements = 0;                              ///< parameters of a rank
  double layers = 0;                                ///< number of blocks
  double kept = 0, flow = 0;  ///< bytes that forward keeps, and of the input of a block; all blocks
};

/// A choice with the lower bound of its value.
struct Bounded {
  Choice choice;
  double bound = 0;
};

class Searcher {
 public:
  Searcher(Space& space, const SearchOptions& options) : space_(space), options_(options) {
    batch_ = space.base().recipe().global_batch;
    length_ = space.base().data().sequence_length;
    heads_ = space.base().model().resolved.num_heads;
    blocks_ = static_cast<int>(space.base().model().resolved.model.blocks.size());
    working_bytes_ = space.working_bytes();
    sum_bytes_ = space.sum_bytes();
    states_ = space.cache().states(space.base());
  }

  Found run() {
    enumerate();
    std::ranges::stable_sort(all_, [](const Bounded& a, const Bounded& b) {
      return std::tie(a.bound, a.choice) < std::tie(b.bound, b.choice);
    });
    predict();
    for (auto& [why, skipped] : skipped_)
      found_.not_tried.push_back({why, skipped.first, skipped.second});
    if (space_.own().offload == Offload::AsGiven)
      found_.not_tried.push_back(
          {"the optimizer and the weights on a disk: no folder is given, with "
           "zero_optimization.offload_optimizer.nvme_path",
           0,
           ""});
    found_.not_tried.push_back({"gpipe takes as long as 1f1b and keeps more activations", 0, ""});
    require_some();
    return std::move(found_);
  }

 private:
  void skip(const std::string& why, const Choice& choice, std::size_t count = 1) {
    auto& [number, example] = skipped_[why];
    if (number == 0) example = text_of(choice);
    number += count;
  }

  // ---- enumeration ----

  void enumerate() {
    const std::vector<int> ranks =
        options_.ranks.empty() ? std::vector<int>{space_.own().ranks} : options_.ranks;
    for (const int n : ranks) {
      for (const auto& [mode, tensor, sequence] : tensors(n)) {
        for (const auto& [context, ulysses] : contexts(n / tensor)) {
          Choice choice = space_.own();
          choice.ranks = n;
          choice.mode = mode;
          choice.tensor = tensor;
          choice.sequence = sequence;
          choice.context = context;
          choice.ulysses = ulysses;
          for (const int threads : threads_of(n)) {
            choice.threads = threads;
            pipelines(choice);
          }
        }
      }
    }
    found_.choices = all_.size();
  }

  /// All cores, and half of them: products of few elements are not faster with more.
  [[nodiscard]] std::vector<int> threads_of(int n) const {
    if (options_.cores == 0 || options_.fixed.threads) return {space_.own().threads};
    const int all = std::max(1, options_.cores / n);
    return all > 1 ? std::vector<int>{all, all / 2} : std::vector<int>{all};
  }

  /// Ranks that share the experts of a layer: data-parallel ones, and those of the configuration.
  [[nodiscard]] std::vector<int> experts_of(Choice choice) const {
    const Choice& own = space_.own();
    if (space_.experts() == 0) return {0};
    choice.expert = own.expert;
    const bool own_fits = choice.data_experts() > 0;
    if (options_.fixed.expert) return own_fits ? std::vector<int>{own.expert} : std::vector<int>();
    std::vector<int> out;
    for (const std::int64_t size : divisors(choice.data())) {
      if (size <= space_.experts()) out.push_back(static_cast<int>(size));
    }
    if (own_fits && std::ranges::find(out, own.expert) == out.end()) out.push_back(own.expert);
    return out;
  }

  /// One data-parallel rank has a stage only for what rests on a disk.
  [[nodiscard]] std::vector<Offload> offloads(int stage, int data) const {
    const Offload own = space_.own().offload;
    if (own == Offload::AsGiven || options_.fixed.offload) return {own};
    const bool divides = data > 1 || options_.fixed.zero;
    std::vector<Offload> out;
    if (divides || stage == 0) out.push_back(Offload::None);
    if (divides ? stage > 0 : stage == 1) out.push_back(Offload::Optimizer);
    if (stage == 3 && space_.weights_have_folder()) out.push_back(Offload::Weights);
    return out;
  }

  [[nodiscard]] std::vector<std::tuple<std::string, int, bool>> tensors(int n) const {
    const Choice& own = space_.own();
    if (options_.fixed.tensor) {
      if (n % own.tensor != 0) return {};
      return {{own.mode, own.tensor, own.sequence}};
    }
    const int host = space_.machine().rates.host_ranks;
    const int most = host > 0 ? std::min(n, host) : n;
    std::vector<std::tuple<std::string, int, bool>> out = {{"1d", 1, false}};
    for (int size = 2; size <= most; ++size) {
      if (n % size != 0 || (heads_ > 0 && heads_ % size != 0)) continue;
      // Experts need whole tokens of a sample.
      out.emplace_back("1d", size, length_ % size == 0 && space_.experts() == 0);
      const auto side = static_cast<int>(std::lround(std::sqrt(size)));
      const auto edge = static_cast<int>(std::lround(std::cbrt(size)));
      if (side * side == size && side > 1) out.emplace_back("2d", size, false);
      if (edge * edge * edge == size && edge > 1) out.emplace_back("3d", size, false);
    }
    return out;
  }

  [[nodiscard]] std::vector<std::pair<int, bool>> contexts(int n) const {
    const Choice& own = space_.own();
    if (options_.fixed.context) {
      if (n % own.context != 0) return {};
      return {{own.context, own.ulysses}};
    }
    std::vector<std::pair<int, bool>> out = {{1, false}};
    // Shorter parts of a sample give products that are too small to be fast.
    constexpr std::int64_t kLeastTokens = 512;
    for (int size = 2; size <= n && length_ / size >= kLeastTokens; size *= 2) {
      if (n % size != 0 || length_ % (2 * size) != 0) continue;
      out.emplace_back(size, false);
      if (heads_ > 0 && heads_ % size == 0) out.emplace_back(size, true);
    }
    return out;
  }

  void pipelines(Choice choice) {
    const int left = choice.ranks / (choice.tensor * choice.context);
    const Choice& own = space_.own();
    for (const std::int64_t size : divisors(left)) {
      if (size > blocks_) break;
      if (options_.fixed.pipeline && size != own.pipeline) continue;
      choice.pipeline = static_cast<int>(size);
      if (size == 1) {
        choice.schedule = "1f1b";
        choice.chunks = 1;
        batches(choice, 0);
        continue;
      }
      for (const Schedule& schedule : kSchedules) {
        if (options_.fixed.schedule && own.pipeline > 1 &&
            (own.schedule != schedule.name || own.chunks != schedule.chunks))
          continue;
        if (size * schedule.chunks > blocks_) continue;
        choice.schedule = schedule.name;
        choice.chunks = schedule.chunks;
        batches(choice, schedule.bubble);
      }
    }
  }

  void batches(Choice choice, double bubble) {
    const int data = choice.data();
    if (batch_ % data != 0) {
      skip("the global batch is not a multiple of the data-parallel ranks", choice);
      return;
    }
    const std::int64_t each = batch_ / data;
    for (const std::int64_t micro : divisors(each)) {
      if (options_.fixed.micro && micro != space_.own().micro) continue;
      if (micro < options_.least_micro || micro > options_.most_micro) continue;
      // Micro-batches that are not a power of two are near to one that is.
      if (!options_.fixed.micro && !is_power_of_two(micro) && micro != each) continue;
      choice.micro = micro;
      choice.accumulation = each / micro;
      if (choice.schedule == std::string("interleaved") &&
          choice.accumulation % choice.pipeline != 0) {
        skip("interleaved needs whole rounds of micro-batches", choice);
        continue;
      }
      for (const int stage : stages(data)) {
        choice.zero = stage;
        for (const Recompute kind : {Recompute::None, Recompute::Selective, Recompute::Full}) {
          if (options_.fixed.recompute && kind != space_.own().recompute) continue;
          choice.recompute = kind;
          for (const Offload offload : offloads(stage, data)) {
            choice.offload = offload;
            for (const int expert : experts_of(choice)) {
              choice.expert = expert;
              add(choice, bubble);
            }
          }
        }
      }
    }
  }

  [[nodiscard]] std::vector<int> stages(int data) const {
    if (options_.fixed.zero) return {space_.own().zero};
    if (data > 1) return {0, 1, 2, 3};
    const Offload own = space_.own().offload;
    if (own == Offload::AsGiven) return {0};
    if (!options_.fixed.offload) return {0, 1, 3};
    return {own == Offload::None ? 0 : own == Offload::Optimizer ? 1 : 3};
  }

  // ---- bounds ----

  const ShapeWork& shape_of(const Choice& choice) {
    const auto key = std::tuple(choice.tensor,
                                choice.mode,
                                choice.sequence,
                                choice.context,
                                choice.ulysses,
                                choice.threads,
                                choice.expert,
                                choice.data_experts());
    const auto [at, is_new] = shapes_.try_emplace(key);
    if (!is_new) return at->second;
    ShapeWork& out = at->second;
    Choice one = choice;
    one.pipeline = one.chunks = 1;
    one.schedule = "1f1b";
    one.zero = 0;
    one.recompute = Recompute::None;
    one.offload = Offload::None;
    if (choice.offload == Offload::AsGiven) one.offload = Offload::AsGiven;
    one.ranks =
        choice.tensor * choice.context * std::max(1, choice.expert > 0 ? choice.data_experts() : 1);
    one.accumulation = 1;
    // Grids share the samples too.
    out.unit = one.micro = choice.mode == "1d" ? 1 : choice.tensor;
    try {
      const planner::Plan plan = space_.plan(one);
      const predict::StepTime time =
          predict::predict_step(plan, space_.machine(), space_.cache(), /*tells_messages=*/false);
      // A forward pass takes about a third of both.
      const double both =
          time.products + time.attention + time.memory + time.layers_in_host + time.layers_between;
      out.forward = both / 3;
      out.backward = both - out.forward;
      out.attention = time.attention / 3;
      for (const predict::BlockElements& block : *space_.cache().elements(plan))
        out.elements += static_cast<double>(block.all);
      out.layers = blocks_;
      for (const parallel::BlockBytes& block : plan.model().probes.cache().training(
               {plan.model().resolved.model, plan.layout(), plan.model().rules, plan.data().sample},
               /*recompute=*/false,
               /*split=*/false)) {
        out.flow += static_cast<double>(block.flow);
        const auto forward = block.passes.find(parallel::ActionKind::Forward);
        if (forward != block.passes.end())
          out.kept += std::max<double>(0, static_cast<double>(forward->second.change));
      }
    } catch (const Error& error) {
      out.refused = error.what();
    }
    return out;
  }

  void add(const Choice& choice, double bubble) {
    const ShapeWork& work = shape_of(choice);
    if (!work.refused.empty()) {
      skip(work.refused.substr(0, work.refused.find('\n')), choice);
      return;
    }
    if (least_memory(choice, work) > memory_of(choice.ranks)) {
      skip("its weights, gradients, optimizer and activations alone do not fit", choice);
      return;
    }
    all_.push_back(
        {choice,
         value_of(least_seconds(choice, work, bubble), least_memory(choice, work), choice.ranks)});
  }

  // Larger products are faster than the sum of smaller ones; that is what the share stands for.
  [[nodiscard]] double least_seconds(const Choice& choice,
                                     const ShapeWork& work,
                                     double bubble) const {
    constexpr double kShareOfLargerBatches = 0.8;
    const double samples = static_cast<double>(choice.micro) / static_cast<double>(work.unit);
    double pass = work.forward + work.backward;
    if (choice.recompute == Recompute::Full) pass += work.forward;
    if (choice.recompute == Recompute::Selective) pass += work.attention;
    pass *= samples * (samples > 1 ? kShareOfLargerBatches : 1.0) / choice.pipeline;
    return pass * (static_cast<double>(choice.accumulation) + bubble * (choice.pipeline - 1));
  }

  [[nodiscard]] double least_memory(const Choice& choice, const ShapeWork& work) const {
    constexpr double kCertain =
        0.9;  // of an estimate that knows no padding and no embedding's stage
    const double data = choice.data();
    const double elements = work.elements / choice.pipeline;
    const double weights = choice.offload == Offload::Weights
                               ? 0
                               : elements * working_bytes_ / (choice.zero == 3 ? data : 1);
    const double gradients = elements * sum_bytes_ / data;
    const double masters = working_bytes_ < 4 ? 4 : 0;
    const bool offloaded =
        choice.offload == Offload::Optimizer || choice.offload == Offload::Weights;
    const double optimizer = (offloaded ? 1 - space_.offloaded_share() : 1.0) * elements *
                             (masters + 4 * states_) / (choice.zero > 0 ? data : 1);
    const double samples = static_cast<double>(choice.micro) / static_cast<double>(work.unit);
    const double live =
        static_cast<double>(std::min<std::int64_t>(choice.accumulation, choice.pipeline));
    const double blocks = choice.recompute == Recompute::None ? work.kept : work.flow;
    return kCertain * (weights + gradients + optimizer + samples * live * blocks / choice.pipeline);
  }

  [[nodiscard]] double memory_of(int ranks) const {
    return planner::kUsableMemory *
           (options_.memory ? options_.memory(ranks) : space_.machine().memory_bytes);
  }

  [[nodiscard]] double value_of(double seconds, double memory, int ranks) const {
    switch (options_.metric) {
      case Metric::Memory:
        return memory;
      case Metric::Cost:
        return seconds * ranks * std::max(space_.machine().price_per_hour, 1.0) / 3600;
      default:
        return seconds;
    }
  }

  // ---- prediction ----

  void predict() {
    std::size_t at = 0;
    for (; at < all_.size() && found_.predicted < options_.most_predicted; ++at) {
      if (found_.best.size() >= options_.most && all_[at].bound > found_.best.back().value) break;
      predict_one(all_[at].choice);
    }
    if (at < all_.size()) {
      skip(found_.predicted < options_.most_predicted
               ? "even its lower bound is above those of the best"
               : "its lower bound is above those of the predicted ones",
           all_[at].choice,
           all_.size() - at);
    }
  }

  void predict_one(const Choice& choice) {
    Candidate candidate;
    try {
      const planner::Plan plan = space_.plan(choice);
      candidate.choice = choice;
      candidate.time =
          predict::predict_step(plan, space_.machine(), space_.cache(), /*tells_messages=*/false);
      ++found_.predicted;
      const bool may_be_best =
          found_.best.size() < options_.most ||
          value_of(candidate.time.seconds, 0, choice.ranks) < found_.best.back().value;
      if (!may_be_best && options_.metric != Metric::Memory) {
        skip("it is predicted to be slower than the best", choice);
        return;
      }
      candidate.memory = planner::estimate_memory(plan);
    } catch (const Error& error) {
      const std::string what = error.what();
      skip(what.substr(0, what.find('\n')), choice);
      return;
    }
    const auto need = static_cast<double>(candidate.memory.total());
    if (need > memory_of(choice.ranks)) {
      if (!nearest_ || need < static_cast<double>(nearest_->memory.total())) nearest_ = candidate;
      skip("it does not fit into memory", choice);
      return;
    }
    candidate.value = value_of(candidate.time.seconds, need, choice.ranks);
    if (!passes_rules(choice)) return;
    const auto place = std::ranges::upper_bound(
        found_.best, candidate.value, {}, [](const Candidate& one) { return one.value; });
    found_.best.insert(place, std::move(candidate));
    if (found_.best.size() <= options_.most) return;
    skip("it is predicted to be slower than the best", found_.best.back().choice);
    found_.best.pop_back();
  }

  // The rules between keys, which only the whole plan checks. Those of a choice that differs by its
  // batch alone are the same.
  bool passes_rules(const Choice& choice) {
    const auto key = std::tuple(choice.tensor,
                                choice.mode,
                                choice.context,
                                choice.pipeline > 1,
                                choice.schedule,
                                choice.chunks,
                                choice.zero,
                                choice.recompute,
                                choice.accumulation > 1,
                                choice.expert,
                                choice.data_experts(),
                                choice.offload);
    const auto [at, is_new] = rules_.try_emplace(key);
    if (is_new) {
      try {
        (void)space_.checked_plan(choice);
      } catch (const Error& error) {
        at->second = error.what();
      }
    }
    if (at->second.empty()) return true;
    skip(at->second.substr(0, at->second.find('\n')), choice);
    return false;
  }

  void require_some() const {
    if (!found_.best.empty()) return;
    TESSERA_REQUIRE(
        !nearest_,
        Memory,
        fmt::format("no layout of {} ranks fits into {} a rank; the nearest one, {}, "
                    "needs {}",
                    space_.own().ranks,
                    text::bytes(static_cast<std::uint64_t>(memory_of(nearest_->choice.ranks))),
                    text_of(nearest_->choice),
                    text::bytes(static_cast<std::uint64_t>(nearest_->memory.total()))),
        "use more ranks, or a machine with more memory");
    std::vector<std::string> reasons;
    for (const NotTried& one : found_.not_tried) {
      if (one.count > 0) reasons.push_back(fmt::format("{} ({})", one.why, one.example));
    }
    throw Error(Error::Kind::Config,
                "no layout can be searched: " + text::join(reasons, "; "),
                "fix fewer keys, or choose another number of ranks or another global batch");
  }

  Space& space_;
  const SearchOptions& options_;
  std::int64_t batch_ = 0, length_ = 0, heads_ = 0;
  int blocks_ = 0, states_ = 0;
  double working_bytes_ = 4, sum_bytes_ = 4;
  std::map<std::tuple<int, std::string, bool, int, bool, int, int, int>, ShapeWork> shapes_;
  using Rule = std::
      tuple<int, std::string, int, bool, std::string, int, int, Recompute, bool, int, int, Offload>;
  std::map<Rule, std::string> rules_;
  std::map<std::string, std::pair<std::size_t, std::string>> skipped_;
  std::vector<Bounded> all_;
  std::optional<Candidate> nearest_;
  Found found_;
};

}  // namespace

Metric metric_of(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [word, metric] : kMetrics) {
    if (name == word) return metric;
    known.emplace_back(word);
  }
  throw Error(
      Error::Kind::Config, fmt::format("metric {}: unknown", name), text::suggestion(name, known));
}

std::string name(Metric metric) {
  for (const auto& [word, one] : kMetrics) {
    if (one == metric) return word;
  }
  TESSERA_ASSERT(false);
}

Found search(Space& space, const SearchOptions& options) {
  return Searcher(space, options).run();
}

Candidate candidate_of(Space& space, const Choice& choice, Metric metric) {
  Candidate out;
  const planner::Plan plan = space.plan(choice);
  out.choice = choice;
  out.time = predict::predict_step(plan, space.machine(), space.cache());
  out.memory = planner::estimate_memory(plan);
  out.value = metric == Metric::Memory ? static_cast<double>(out.memory.total())
              : metric == Metric::Cost ? out.time.seconds * choice.ranks *
                                             std::max(space.machine().price_per_hour, 1.0) / 3600
                                       : out.time.seconds;
  return out;
}

}  // namespace tessera::tune
