// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/parallel_options.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/text.h"
#include "tessera/parallel/pipeline/schedule.h"

namespace tessera::planner {

void PipelineOptions::describe(config::Fields& f) {
  f.field("size",
          size,
          {.text = "Number of pipeline stages, each with a part of the model's blocks. "
                   "\"pipeline\": 2 is a short form.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.field("schedule",
          schedule,
          {.text = "Pipeline schedule: the order of forward and backward passes of a stage.",
           .choices = parallel::pipeline_schedules().names(),
           .default_text = "1f1b; interleaved if chunks is above 1"});
  f.field("chunks",
          chunks,
          {.text = "Number of model chunks per stage: two or more with the schedule interleaved, "
                   "two with zb-v.",
           .min = 1,
           .max = 1024,
           .default_text = "1; 2 with interleaved and zb-v"});
  f.field("partition",
          partition,
          {.text = "Assignment of blocks to stages: uniform (a remainder goes to the first "
                   "stages), uniform-last (a remainder goes to the last stages of every chunk), "
                   "parameters (equal parameter counts), balanced (equal predicted work), profile "
                   "(by time and memory that the first rank measures at the start), type:REGEX "
                   "(equal numbers of blocks whose name matches), or a list of bounds.",
           .default_text = "balanced",
           .type = "string or list of integers"});
  f.field(
      "scatter_gather",
      scatter_gather,
      {.text =
           "If tensor-parallel ranks hold the same activations, each sends only its part to the "
           "next stage, which gathers the parts. Useful if communication between stages is slow."});
}

void TensorOptions::describe(config::Fields& f) {
  f.choice("mode",
           mode,
           kTensorLayouts,
           {.text = "How weights and activations are sharded.", .default_text = "1d"});
  f.field("size",
          size,
          {.text = "Number of ranks over which every layer is sharded.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.field("depth",
          depth,
          {.text = "Depth of mode 2.5d: the number of grids; size = depth x side x side.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks,
           .default_text = "1"});
}

TensorOptions::Grid TensorOptions::grid() const {
  const TensorLayout kind = layout();
  if (kind == TensorLayout::OneD) return {1, share_head, size / share_head};
  const std::int64_t layers = kind == TensorLayout::TwoAndAHalfD ? depth.value_or(1) : 1;
  const auto of_side = [&](std::int64_t side) {
    return Grid{kind == TensorLayout::ThreeD ? side : layers, side, side};
  };
  std::int64_t side = 1;
  while (of_side(side + 1).size() <= size)
    ++side;
  return of_side(side);
}

void ContextOptions::describe(config::Fields& f) {
  f.field("size",
          size,
          {.text = "Number of ranks over which the tokens of every sequence are sharded. "
                   "\"context\": 2 is a short form.",
           .unit = "ranks",
           .min = 1,
           .max = kMostRanks});
  f.choice("mode",
           mode,
           kContextModes,
           {.text = "How attention accesses tokens of other ranks: ring sends keys and values "
                    "around a ring; ulysses exchanges tokens for heads by all-to-all."});
}

std::int64_t ParallelOptions::token_unit() const {
  // In a ring every rank has two chunks.
  const std::int64_t chunks =
      context.size == 1 ? 1 : (context.mode == nn::ContextMode::Ring ? 2 : 1) * context.size;
  return std::lcm(chunks, sequence ? context.size * tensor.size : 1);
}

void ParallelOptions::describe(config::Fields& f) {
  f.section("pipeline",
            pipeline,
            "Pipeline parallelism: the model's blocks are distributed over stages.");
  f.section("tensor", tensor, "Tensor parallelism: every layer is sharded over ranks.");
  f.field("sequence",
          sequence,
          {.text = "Sequence parallelism, with tensor: norms and dropouts are sharded over tokens, "
                   "and layers use all-gather and reduce-scatter instead of all-reduce."});
  f.section("context",
            context,
            "Context parallelism: the tokens of long sequences are sharded over ranks.");
}

namespace {

void erase(json::Value& object, std::string_view key) {
  std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
}

bool is_word(const json::Value* value, std::string_view word) {
  return value != nullptr && value->is_string() && value->as_string() == word;
}

json::Value* block_of(json::Value& source, std::string_view key) {
  json::Value* const block = source.find(key);
  return block != nullptr && block->is_object() ? block : nullptr;
}

// Removes DeepSpeed's values that mean "absent", and renames one that has another name here.
void spell_out_deepspeed(json::Value& source) {
  if (json::Value* const pipeline = block_of(source, "pipeline")) {
    if (is_word(pipeline->find("stages"), "auto")) erase(*pipeline, "stages");
    json::Value* const partition = pipeline->find("partition");
    if (is_word(partition, "best")) {
      json::Value same = json::Value::string("parameters");
      same.place = partition->place;
      same.key_place = partition->key_place;
      *partition = std::move(same);
    }
  }
  if (json::Value* const tensor = block_of(source, "tensor_parallel")) {
    const json::Value* const size = tensor->find("autotp_size");
    const bool off = size != nullptr && size->is_number() && size->as_integer() == 0;
    if (off || is_word(size, "auto")) erase(*tensor, "autotp_size");
  }
}

bool is_given(const json::Value& object, std::string_view key) {
  const json::Value* const value = object.find(key);
  return value != nullptr && !value->is_null();
}

// Sets `value` with the place of the value from which it was made.
void put(json::Value& object, std::string_view key, json::Value value, const json::Value& origin) {
  value.place = origin.place;
  value.key_place = origin.key_place;
  object[key] = std::move(value);
}

// DeepSpeed recomputes segments of several pipeline layers, tessera one block after the other.
void move_interval(json::Value& source) {
  constexpr std::string_view kKey = "activation_checkpoint_interval";
  constexpr std::string_view kSection = "activation_checkpointing";
  json::Value* const pipeline = block_of(source, "pipeline");
  if (pipeline == nullptr || !is_given(*pipeline, kKey)) return;
  const json::Value interval = *pipeline->find(kKey);
  const auto layers = interval.is_number() ? interval.as_integer() : std::nullopt;
  if (!layers || *layers < 0) return;
  if (*layers == 0) return erase(*pipeline, kKey);
  if (is_given(source, kSection)) {
    const json::Value* const section = block_of(source, kSection);
    // A section that sets it explicitly takes precedence, and the key is reported as having no
    // effect.
    if (section == nullptr || is_given(*section, "enabled") || is_given(*section, "granularity"))
      return;
  }
  erase(*pipeline, kKey);
  json::Value& section = source[kSection];
  if (section.is_null()) section.place = section.key_place = interval.key_place;
  put(section, "enabled", json::Value::boolean(true), interval);
}

// Colossal-AI's fp16 has a mode instead of a switch, and Megatron-LM's scaler.
void spell_out_mode(json::Value& source) {
  json::Value* const fp16 = block_of(source, "fp16");
  if (fp16 == nullptr || !is_given(*fp16, "mode") || is_given(*fp16, "enabled")) return;
  const json::Value mode = *fp16->find("mode");
  if (!mode.is_string()) return;
  put(*fp16, "enabled", json::Value::boolean(true), mode);
  if (!is_given(*fp16, "scaler")) put(*fp16, "scaler", json::Value::string("megatron"), mode);
  // The other modes are reported to behave like this one.
  if (amp_type(mode.as_string()) == "naive") erase(*fp16, "mode");
}

// Colossal-AI's models also take the number of chunks as an argument.
void move_chunks(json::Value& source) {
  json::Value* const model = block_of(source, "model");
  const json::Value* const chunks = model == nullptr ? nullptr : model->find("num_chunks");
  if (chunks == nullptr || source.find("NUM_CHUNKS") != nullptr) return;
  json::Value moved = *chunks;
  erase(*model, "num_chunks");
  source["NUM_CHUNKS"] = std::move(moved);
}

// Colossal-AI's sequence mode: ranks share the tokens, and all of them hold every weight.
void move_sequence_mode(json::Value& parallel) {
  json::Value* const tensor = block_of(parallel, "tensor");
  if (tensor == nullptr || !is_word(tensor->find("mode"), "sequence")) return;
  // Both are given: the mode is reported as unknown.
  if (parallel.find("context") != nullptr) return;
  json::Value context = std::move(*tensor);
  erase(context, "mode");
  context.key_place = context.place;
  erase(parallel, "tensor");
  parallel["context"] = std::move(context);
}

}  // namespace

json::Value spell_out_parallel(json::Value source) {
  if (!source.is_object()) return source;
  spell_out_deepspeed(source);
  move_interval(source);
  spell_out_mode(source);
  move_chunks(source);
  json::Value* const parallel = block_of(source, "parallel");
  if (parallel == nullptr) return source;
  std::erase_if(parallel->members(), [](const auto& member) { return member.second.is_null(); });
  for (const char* const key : {"pipeline", "tensor", "context"}) {
    json::Value* const value = parallel->find(key);
    if (value == nullptr || !value->is_number()) continue;
    const json::Place place = value->place;
    json::Value size = std::move(*value);
    *value = json::Value::object();
    (*value)["size"] = std::move(size);
    value->place = place;
  }
  move_sequence_mode(*parallel);
  return source;
}

std::string amp_type(std::string_view mode) {
  return text::lower(mode.substr(mode.rfind('.') + 1));
}

std::int64_t ranks_per_model(const json::Value& source) {
  const json::Value* const section = source.is_object() ? source.find("parallel") : nullptr;
  if (section == nullptr) return 1;
  ParallelOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(*section, options, problems, origins);
  return problems.empty() ? options.ranks_per_model() : 1;
}

bool sizes_are_known(const config::Problems& problems) {
  constexpr std::array kSizes = {
      "parallel.pipeline.size", "parallel.tensor.size", "parallel.context.size"};
  return std::none_of(
      kSizes.begin(), kSizes.end(), [&](const char* path) { return problems.concern(path); });
}

void check_product(const ParallelOptions& options,
                   int ranks,
                   config::Problems& problems,
                   const config::Origins& origins) {
  const std::int64_t unit = options.ranks_per_model();
  if (ranks % unit == 0) return;
  std::vector<std::string> nearest;
  for (const std::int64_t count : {ranks / unit * unit, (ranks / unit + 1) * unit}) {
    if (count > 0 && count <= kMostRanks) nearest.push_back(fmt::format("-n {}", count));
  }
  problems.add(origins.place("parallel"),
               "parallel",
               fmt::format("{} {} cannot be divided into pipeline {} x tensor {} x context {} = {}",
                           ranks,
                           ranks == 1 ? "rank" : "ranks",
                           options.pipeline.size,
                           options.tensor.size,
                           options.context.size,
                           unit),
               nearest.empty() ? fmt::format("lower them: there are at most {} ranks", kMostRanks)
                               : "use " + text::join(nearest, " or "));
}

}  // namespace tessera::planner
