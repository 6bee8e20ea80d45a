// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stages.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/pipeline/partition.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/train_config.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::planner {
namespace {

constexpr const char* kSize = "parallel.pipeline.size";
constexpr const char* kChunks = "parallel.pipeline.chunks";
constexpr const char* kSchedule = "parallel.pipeline.schedule";
constexpr const char* kPartition = "parallel.pipeline.partition";
constexpr const char* kUniformLast = "uniform-last";
constexpr std::string_view kType = "type:", kProfile = "profile";

/// Finds the bounds, or reports why there are none.
class Partition {
 public:
  Partition(const parallel::PipelineOptions& options,
            const nn::Model& model,
            std::int64_t sequence_length,
            config::Problems& problems,
            const config::Origins& origins)
      : options_(options),
        model_(model),
        sequence_length_(sequence_length),
        problems_(problems),
        origins_(origins),
        blocks_(static_cast<int>(model.blocks.size())),
        chunks_(problems.concern(kChunks) ? 1 : options.chunks),
        parts_(options.size * chunks_),
        known_(!problems.concern(kChunks) && !problems.concern(kSchedule)) {}

  /// For given bounds only their number is checked; named partitions need no check.
  std::vector<int> bounds() {
    const bool fits = fit();
    if (options_.partition.is_array()) return given(fits);
    const std::string word =
        options_.partition.is_null() ? "balanced" : options_.partition.as_string();
    const int parts = fits ? static_cast<int>(parts_) : 1;
    if (word == "uniform") return parallel::uniform_bounds(blocks_, parts);
    if (word == kUniformLast)
      return fits ? uniform_last() : parallel::uniform_bounds(blocks_, parts);
    if (word == "parameters") return parallel::balanced_bounds(parameters(), parts);
    if (word == "balanced" || word == kProfile) {  // until the blocks are measured
      const std::vector<double> work = predicted_work(model_, sequence_length_);
      return parallel::balanced_bounds(work, parts);
    }
    if (word.starts_with(kType)) return by_name(word.substr(kType.size()), parts);
    static const std::vector<std::string> words = {
        "uniform", kUniformLast, "parameters", "balanced", std::string(kProfile), "type:REGEX"};
    refuse(
        kPartition, fmt::format("unknown partition \"{}\"", word), text::suggestion(word, words));
    return {};
  }

 private:
  void refuse(const char* path, std::string what, std::string fix) {
    problems_.add(origins_.place(path), path, std::move(what), std::move(fix));
  }

  std::vector<int> uniform_last() {
    const auto chunks = static_cast<int>(chunks_);
    if (blocks_ % chunks == 0)
      return parallel::uniform_last_bounds(blocks_, static_cast<int>(options_.size), chunks);
    refuse(kPartition,
           fmt::format("{} gives every chunk as many blocks, and {} chunks do not divide {}",
                       kUniformLast,
                       chunks,
                       blocks_),
           "use \"uniform\" or \"balanced\", or another number of chunks");
    return {};
  }

  /// True if there are enough blocks for all parts.
  bool fit() {
    if (parts_ <= blocks_) return true;
    const bool chunked = chunks_ > 1;
    const char* const key = chunked ? kChunks : kSize;
    refuse(key,
           fmt::format("{} stages{} need at least {} blocks, and the model has {}",
                       options_.size,
                       chunked ? fmt::format(" with {} chunks each", chunks_) : "",
                       parts_,
                       blocks_),
           chunked ? "use fewer chunks or stages, or a model with more layers"
                   : fmt::format("use at most {} stages, or a model with more layers", blocks_));
    return false;
  }

  std::vector<int> given(bool fits) {
    std::vector<int> out;
    bool ascending = true;
    for (const json::Value& item : options_.partition.items()) {
      const std::int64_t bound = item.is_number() ? item.as_integer().value_or(-1) : -1;
      const std::int64_t least = out.empty() ? 0 : out.back() + 1;
      ascending = ascending && bound >= least && bound <= blocks_;
      if (!ascending) break;
      out.push_back(static_cast<int>(bound));
    }
    const bool whole = ascending && !out.empty() && out.front() == 0 && out.back() == blocks_;
    if (whole && (!fits || !known_ || std::ssize(out) == parts_ + 1)) return out;
    if (!fits || !known_) {
      refuse(kPartition,
             fmt::format("{} does not cut {} blocks", options_.partition.dump(), blocks_),
             fmt::format("give ascending bounds from 0 to {}", blocks_));
      return {};
    }
    refuse(kPartition,
           fmt::format("{} does not cut {} blocks into {} {}",
                       options_.partition.dump(),
                       blocks_,
                       parts_,
                       parts_ == 1 ? "part" : "parts"),
           fmt::format("give {} ascending bounds from 0 to {}", parts_ + 1, blocks_));
    return {};
  }

  [[nodiscard]] std::vector<double> parameters() const {
    std::vector<double> out;
    for (const nn::BlockSpec& spec : model_.blocks) {
      double count = 0;
      for (const auto& info : nn::declared_by(spec))
        count += info->trainable ? static_cast<double>(info->numel()) : 0.0;
      out.push_back(count);
    }
    return out;
  }

  std::vector<int> by_name(const std::string& pattern, int parts) {
    std::vector<double> weights;
    try {
      const auto regex = text::tokenizers::regex_pattern("(?i)" + pattern);
      for (const nn::BlockSpec& spec : model_.blocks) {
        text::tokenizers::Ranges found;
        regex->find(spec.name, found);
        weights.push_back(found.empty() ? 0.0 : 1.0);
      }
    } catch (const Error& error) {
      refuse(kPartition,
             fmt::format("\"{}\" is no regular expression: {}", pattern, error.what()),
             "use for example \"type:^h\\\\.\"");
      return {};
    }
    if (std::find(weights.begin(), weights.end(), 1.0) != weights.end())
      return parallel::balanced_bounds(weights, parts);
    refuse(
        kPartition,
        fmt::format("no block's name matches \"{}\"", pattern),
        fmt::format(
            "blocks are called {} to {}", model_.blocks.front().name, model_.blocks.back().name));
    return {};
  }

  const parallel::PipelineOptions& options_;
  const nn::Model& model_;
  std::int64_t sequence_length_;
  config::Problems& problems_;
  const config::Origins& origins_;
  int blocks_;
  std::int64_t chunks_, parts_;
  bool known_;  ///< the keys that determine the parts have no problems
};

/// "h.0 to h.3", the names of consecutive blocks.
std::string names_of(const nn::Model& model, std::pair<int, int> blocks) {
  const std::string& first = model.blocks[static_cast<std::size_t>(blocks.first)].name;
  const std::string& last = model.blocks[static_cast<std::size_t>(blocks.second) - 1].name;
  return blocks.second - blocks.first == 1 ? first : first + " to " + last;
}

}  // namespace

void complete_pipeline(parallel::PipelineOptions& options,
                       config::Problems& problems,
                       const config::Origins& origins) {
  // With an invalid schedule or number of chunks neither can be checked.
  if (options.size <= 1 || problems.concern(kSchedule) || problems.concern(kChunks)) return;
  if (options.chunks > 1 && !origins.given(kSchedule)) options.schedule = "interleaved";
  const parallel::PipelineSchedule& schedule = parallel::pipeline_schedules().get(options.schedule);
  if (!origins.given(kChunks)) options.chunks = schedule.least_chunks;
  if (options.chunks >= schedule.least_chunks && options.chunks <= schedule.most_chunks) return;
  problems.add(origins.place(kChunks),
               kChunks,
               fmt::format("the schedule {} works with {} {} a stage, not {}",
                           options.schedule,
                           schedule.least_chunks == schedule.most_chunks
                               ? fmt::format("{}", schedule.least_chunks)
                               : fmt::format("{} or more", schedule.least_chunks),
                           schedule.most_chunks == 1 ? "chunk" : "chunks",
                           options.chunks),
               schedule.most_chunks == 1
                   ? "remove it, or set parallel.pipeline.schedule to \"interleaved\""
                   : fmt::format("set it to {}", schedule.least_chunks));
}

void check_pipeline(const TrainConfig& config,
                    std::int64_t accumulation,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const parallel::ParallelOptions& parallel = config.parallel;
  const parallel::PipelineOptions& options = parallel.pipeline;
  const auto single = [&](std::int64_t size, const char* key) {
    return size <= 1 && !problems.concern(key);
  };
  if (options.scatter_gather &&
      (single(options.size, kSize) || single(parallel.tensor.size, "parallel.tensor.size") ||
       parallel.sequence || parallel.tensor.layout() != parallel::TensorLayout::OneD)) {
    problems.add(origins.place("parallel.pipeline.scatter_gather"),
                 "parallel.pipeline.scatter_gather",
                 "there is nothing to scatter: only with several stages, and tensor parallelism 1d "
                 "without parallel.sequence, do ranks have the same flow",
                 "remove it");
  }
  if (options.size <= 1) return;
  const parallel::PipelineSchedule& schedule = parallel::pipeline_schedules().get(options.schedule);
  // If the batch could not be solved, uses the given value.
  const std::int64_t micros =
      accumulation > 0 ? accumulation : config.gradient_accumulation_steps.value_or(0);
  if (schedule.whole_rounds && micros % options.size != 0) {
    const std::int64_t below = micros / options.size * options.size;
    problems.add(
        origins.place(kSchedule),
        kSchedule,
        fmt::format("the schedule {} takes micro-batches in rounds of as many as there are stages, "
                    "and {} are no multiple of {}",
                    options.schedule,
                    micros,
                    options.size),
        below > 0 ? fmt::format(
                        "set gradient_accumulation_steps to {} or {}", below, below + options.size)
                  : fmt::format("set gradient_accumulation_steps to {}", options.size));
  }
  if (exchange_needs(config.optimizer).fused) {
    problems.add(origins.place("optimizer.type"),
                 "optimizer.type",
                 fmt::format("{} compresses all parameters as one vector with one scale, and a "
                             "stage has only its own (parallel.pipeline)",
                             config.optimizer.type),
                 "use OneBitAdam or Lamb, or set parallel.pipeline to 1");
  }
}

std::vector<double> predicted_work(const nn::Model& model, std::int64_t sequence_length) {
  std::vector<double> out;
  for (const nn::BlockSpec& spec : model.blocks) {
    const bool objective = &spec == &model.blocks.back();
    double work = 0;
    std::int64_t attended = 0;
    for (const auto& info : nn::declared_by(spec)) {
      const optim::ParamFacts facts = parallel::facts_of(*info);
      if (!facts.matrix || (facts.embedding && !objective)) continue;
      work += static_cast<double>(info->numel());
      const auto has = [&](LogicalAxis axis) {
        return std::find(info->axes.begin(), info->axes.end(), axis) != info->axes.end();
      };
      if ((has(LogicalAxis::Heads) || has(LogicalAxis::KvHeads) ||
           has(LogicalAxis::GroupedHeads)) &&
          has(LogicalAxis::Embed))
        attended = std::min(facts.rows, facts.columns);
    }
    // Scores and weighted sums of values: two products over, on average, half of the sequence.
    out.push_back(work + static_cast<double>(attended * sequence_length));
  }
  return out;
}

parallel::StageLayout place_blocks(const parallel::PipelineOptions& options,
                                   const nn::Model& model,
                                   std::int64_t sequence_length,
                                   config::Problems& problems,
                                   const config::Origins& origins) {
  parallel::StageLayout out;
  const json::Value& partition = options.partition;
  if (!partition.is_null() && !partition.is_string() && !partition.is_array()) {
    problems.add(
        origins.place(kPartition),
        kPartition,
        fmt::format("expected a string or a list of bounds, found {}", partition.type_name()),
        "write \"balanced\"");
    return out;
  }
  if (options.size <= 1) return out;
  out.stages = static_cast<int>(options.size);
  out.chunks = static_cast<int>(options.chunks);
  out.placement = parallel::pipeline_schedules().get(options.schedule).placement;
  out.bounds = Partition(options, model, sequence_length, problems, origins).bounds();
  return out;
}

namespace {

/// "wte to h.1 and h.4 to head".
std::string blocks_of_stage(const parallel::StageLayout& stages,
                            const nn::Model& model,
                            int stage) {
  std::vector<std::string> names;
  for (int chunk = 0; chunk < stages.chunks; ++chunk) {
    names.push_back(
        names_of(model, stages.blocks(stage, chunk, static_cast<int>(model.blocks.size()))));
  }
  return text::join(names, " and ");
}

}  // namespace

double planned_waits(const parallel::Layout& layout) {
  const parallel::StageLayout& stages = layout.stages;
  if (stages.stages == 1) return 0.0;
  const parallel::PipelineSize size{
      stages.stages,
      stages.chunks,
      static_cast<int>(std::max<std::int64_t>(layout.accumulation, 1))};
  const double bubble = parallel::simulate(parallel::all_actions(layout.pipeline_schedule(), size),
                                           size,
                                           stages.placement,
                                           parallel::PassTimes())
                            .bubble();
  return bubble / (1 + bubble);
}

std::vector<std::string> stage_lines(const parallel::Layout& layout, const nn::Model& model) {
  std::vector<std::string> out;
  const int each = layout.ranks() / layout.stages.stages;
  for (int stage = 0; stage < layout.stages.stages; ++stage) {
    std::int64_t numel = 0;
    for (int chunk = 0; chunk < layout.stages.chunks; ++chunk) {
      const auto blocks = layout.stages.blocks(stage, chunk, static_cast<int>(model.blocks.size()));
      for (int b = blocks.first; b < blocks.second; ++b) {
        for (const auto& info : nn::declared_by(model.blocks[static_cast<std::size_t>(b)]))
          numel += info->numel();
      }
    }
    const std::string ranks =
        each == 1 ? fmt::format("rank {}", stage)
                  : fmt::format("ranks {}-{}", stage * each, (stage + 1) * each - 1);
    out.push_back(fmt::format("{} ({}): {}; {} parameters",
                              stage,
                              ranks,
                              blocks_of_stage(layout.stages, model, stage),
                              text::with_commas(numel)));
  }
  return out;
}

std::vector<std::string> build_lines(const parallel::Layout& layout,
                                     const nn::Model& model,
                                     int rank) {
  std::vector<std::string> out;
  const auto& blocks = model.blocks;
  const int all = static_cast<int>(blocks.size());
  const bool has_layers = std::any_of(blocks.begin(), blocks.end(), nn::is_layer);
  const auto layers_before = [&](int end) {
    return has_layers ? std::count_if(blocks.begin(), blocks.begin() + end, nn::is_layer) : end;
  };
  const int stage = layout.mesh().coordinate(rank, mesh::Axis::Pp);
  for (int chunk = 0; chunk < layout.stages.chunks; ++chunk) {
    const auto [begin, end] = layout.stages.blocks(stage, chunk, all);
    const auto first = layers_before(begin), last = layers_before(end);
    out.push_back(fmt::format("Rank{} build layer {}-{}, {}/{} layers",
                              rank,
                              first,
                              last,
                              last - first,
                              layers_before(all)));
  }
  return out;
}

std::vector<std::string> mesh_lines(const parallel::Layout& layout,
                                    const nn::Model& model,
                                    const std::string& host,
                                    std::size_t most) {
  constexpr std::size_t kMostOfHost = 16;
  const mesh::Mesh mesh = layout.mesh();
  const int ranks = layout.ranks();
  // Without the domain.
  const std::string short_host = host.substr(0, std::min(host.find('.'), kMostOfHost));
  const std::size_t width = std::max<std::size_t>(short_host.size(), 4);
  std::vector<std::string> out = {fmt::format("{:>4}  {:<{}}  {:>5}  {:>3} {:>3} {:>3} {:>3}  {}",
                                              "rank",
                                              "host",
                                              width,
                                              "stage",
                                              "pp",
                                              "dp",
                                              "cp",
                                              "tp",
                                              "blocks")};
  for (int rank = 0; rank < ranks; ++rank) {
    const bool last_free = out.size() + 1 >= most;
    if (last_free && rank + 1 < ranks) {
      out.push_back(fmt::format("{:>4}  more ranks", ranks - rank));
      return out;
    }
    const int stage = mesh.coordinate(rank, mesh::Axis::Pp);
    out.push_back(fmt::format("{:>4}  {:<{}}  {:>5}  {:>3} {:>3} {:>3} {:>3}  {}",
                              rank,
                              short_host,
                              width,
                              stage,
                              stage,
                              mesh.index(rank, mesh::AxisSet::dp()),
                              mesh.coordinate(rank, mesh::Axis::Cp),
                              mesh.index(rank, mesh::AxisSet::tp()),
                              blocks_of_stage(layout.stages, model, stage)));
  }
  return out;
}

}  // namespace tessera::planner
