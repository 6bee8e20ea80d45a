// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/placement.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/pipeline/partition.h"
#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/text/tokenizers/pattern.h"

namespace tessera::parallel {
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
  Partition(const PipelineOptions& options,
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
    if (word == "uniform") return uniform_bounds(blocks_, parts);
    if (word == kUniformLast) return fits ? uniform_last() : uniform_bounds(blocks_, parts);
    if (word == "parameters") return balanced_bounds(parameters(), parts);
    if (word == "balanced" || word == kProfile) {  // until the blocks are measured
      const std::vector<double> work = predicted_work(model_, sequence_length_);
      return balanced_bounds(work, parts);
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
      return uniform_last_bounds(blocks_, static_cast<int>(options_.size), chunks);
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
             fmt::format("\"{}\" is not a regular expression: {}", pattern, error.what()),
             "use for example \"type:^h\\\\.\"");
      return {};
    }
    if (std::find(weights.begin(), weights.end(), 1.0) != weights.end())
      return balanced_bounds(weights, parts);
    refuse(
        kPartition,
        fmt::format("no block's name matches \"{}\"", pattern),
        fmt::format(
            "blocks are called {} to {}", model_.blocks.front().name, model_.blocks.back().name));
    return {};
  }

  const PipelineOptions& options_;
  const nn::Model& model_;
  std::int64_t sequence_length_;
  config::Problems& problems_;
  const config::Origins& origins_;
  int blocks_;
  std::int64_t chunks_, parts_;
  bool known_;  ///< the keys that determine the parts have no problems
};

}  // namespace

void complete_pipeline(PipelineOptions& options,
                       config::Problems& problems,
                       const config::Origins& origins) {
  // With an invalid schedule or number of chunks neither can be checked.
  if (options.size <= 1 || problems.concern(kSchedule) || problems.concern(kChunks)) return;
  if (options.chunks > 1 && !origins.given(kSchedule)) options.schedule = "interleaved";
  const PipelineSchedule& schedule = pipeline_schedules().get(options.schedule);
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

std::vector<double> predicted_work(const nn::Model& model, std::int64_t sequence_length) {
  std::vector<double> out;
  for (const nn::BlockSpec& spec : model.blocks) {
    const bool objective = &spec == &model.blocks.back();
    double work = 0;
    std::int64_t attended = 0;
    for (const auto& info : nn::declared_by(spec)) {
      const optim::ParamFacts facts = facts_of(*info);
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

StageLayout place_blocks(const PipelineOptions& options,
                         const nn::Model& model,
                         std::int64_t sequence_length,
                         config::Problems& problems,
                         const config::Origins& origins) {
  StageLayout out;
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
  out.placement = pipeline_schedules().get(options.schedule).placement;
  out.bounds = Partition(options, model, sequence_length, problems, origins).bounds();
  return out;
}

}  // namespace tessera::parallel
