// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/open_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/launch.h"
#include "tessera/launch/launch.h"
#include "tessera/models/weights_of.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/weight_gather.h"
#include "tessera/planner/model_source.h"
#include "tessera/planner/train_config.h"

namespace tessera::engine {
namespace {
namespace fs = std::filesystem;

std::optional<fs::path> find_checkpoint(const fs::path& path) {
  if (!fs::is_directory(path)) return std::nullopt;
  if (fs::exists(path / "manifest.json")) return path;
  if (auto found = checkpoint::newest(path / "checkpoints")) return found;
  return checkpoint::newest(path);
}

/// Parameters with fewer elements stay whole on every rank, as in training.
constexpr std::int64_t kPersistent = 100'000;

void build(OpenModel& out, comm::World& world) {
  out.world = &world;
  parallel::WeightOptions weights;
  if (world.size() > 1) {
    weights.residency = parallel::Residency::Sharded;
    weights.persistence_threshold = kPersistent;
  }
  out.model = std::make_unique<parallel::ModelInstance>(out.shape.model, weights, world);
  out.gather = std::make_unique<parallel::WeightGather>(*out.model, parallel::GatherOptions());
  out.executor = std::make_unique<parallel::Executor>(
      *out.model, std::vector<parallel::Policy*>{out.gather.get()});
}

/// Calls fn(parameter, begin, end, fp32 values) for what this rank holds of every parameter:
/// elements of its box.
template <class Fn>
void for_each_range(OpenModel& out, Fn fn) {
  const int rank = out.world->group(mesh::AxisSet::dp()).index;
  for (parallel::FlatGroup& group : out.model->groups()) {
    const at::Tensor& own = group.weights.own();
    const std::int64_t first =
        own.numel() == group.layout.numel() ? 0 : group.layout.shard_begin(rank);
    for (const Segment& segment : group.layout.segments()) {
      const std::int64_t begin = std::max(segment.begin, first);
      const std::int64_t end = std::min(segment.end(), first + own.numel());
      if (begin >= end) continue;
      fn(*segment.info,
         begin - segment.begin,
         end - segment.begin,
         own.data_ptr<float>() + (begin - first));
    }
  }
}

void load_checkpoint(OpenModel& out) {
  std::vector<checkpoint::PieceBytes> pieces;
  for_each_range(out,
                 [&](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* values) {
                   pieces.push_back({info.name,
                                     DType::F32,
                                     info.shape,
                                     {info.held(), begin, end},
                                     {reinterpret_cast<std::byte*>(values),
                                      static_cast<std::size_t>(end - begin) * sizeof(float)}});
                 });
  checkpoint::Checkpoint(out.source).load(pieces);
}

void load(OpenModel& out) {
  for (parallel::FlatGroup& group : out.model->groups())
    group.weights.begin_write();
  if (out.weights) {
    for_each_range(out, out.weights);
  } else if (out.config) {
    load_checkpoint(out);
  } else {
    const json::Value config = json::parse_strict(files::read(out.source / "config.json"),
                                                  (out.source / "config.json").string());
    const models::WeightSource source =
        models::family_of_hf(config).weights_from_hf(out.source, out.shape);
    for_each_range(out,
                   [&](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* values) {
                     parallel::fill_held(source, info, begin, end, values);
                   });
  }
  for (parallel::FlatGroup& group : out.model->groups())
    group.weights.written();
  for (parallel::FlatGroup& group : out.model->groups())
    group.weights.settle();
}

// Converted into a checkpoint of ours, or still another program's: there is no run to plan.
void find_imported(OpenModel& out) {
  const planner::ModelSource source = planner::open_model_source(out.source);
  out.tokenizer = planner::source_tokenizer(source);
  config::Problems problems;
  out.shape = models::families()
                  .get(source.model.family)
                  .resolve(source.model, out.tokenizer->size(), std::nullopt, problems, {});
  problems.raise();
  out.weights = planner::source_weights(source, out.shape);
}

void find_run(OpenModel& out) {
  const checkpoint::Checkpoint opened(out.source);
  if (opened.meta().extra.find("imported") != nullptr &&
      opened.meta().config.find("data") == nullptr) {
    return find_imported(out);
  }
  // The resolved batch sizes close for the ranks that trained it, not for the one that reads it.
  const json::Value* ranks = opened.meta().extra.find("ranks");
  const auto trained_on = ranks == nullptr ? 1 : static_cast<int>(ranks->as_integer().value_or(1));
  const planner::Plan plan =
      planner::make_plan(opened.meta().config, trained_on, (out.source / "manifest.json").string());
  out.shape = plan.model;
  out.trained_on = trained_on;
  out.tokenizer = plan.tokenizer;
  out.config = opened.meta().config;
}

void find_hugging_face(OpenModel& out) {
  const fs::path config_path = out.source / "config.json";
  const json::Value config = json::parse_strict(files::read(config_path), config_path.string());
  const models::Family& family = models::family_of_hf(config);
  const models::ModelOptions options = family.options_from_hf(config);
  out.tokenizer = data::tokenizer_from_folder(out.source);
  config::Problems problems;
  out.shape = family.resolve(options, out.tokenizer->size(), std::nullopt, problems, {});
  problems.raise();
}

}  // namespace

std::unique_ptr<OpenModel> find_model(const fs::path& path) {
  TESSERA_REQUIRE(fs::exists(path),
                  Format,
                  fmt::format("{} does not exist", path.string()),
                  "name a run folder, a checkpoint or a Hugging Face folder");
  auto out = std::make_unique<OpenModel>();
  if (const auto folder = find_checkpoint(path)) {
    out->source = *folder;
    find_run(*out);
  } else if (planner::is_foreign_source(path)) {
    out->source = path;
    find_imported(*out);
  } else if (fs::exists(path / "config.json") && !fs::exists(path / "metrics.jsonl") &&
             !fs::exists(path / "lock")) {
    out->source = path;
    find_hugging_face(*out);
  } else {
    throw Error(
        Error::Kind::Format,
        fmt::format("{} holds no complete checkpoint and is no Hugging Face folder", path.string()),
        "name a run folder, a checkpoint or a Hugging Face folder");
  }
  return out;
}

void check_memory(const OpenModel& model, int ranks, std::uint64_t available) {
  constexpr double kUsable = 0.95;
  std::int64_t elements = 0;
  for (const auto& param : models::parameters_of(model.shape.model))
    elements += param->numel() * (param->numel() < kPersistent ? ranks : 1);
  const auto weights = static_cast<std::uint64_t>(elements) * sizeof(float);
  if (static_cast<double>(weights) <= kUsable * static_cast<double>(available)) return;
  throw Error(
      Error::Kind::Memory,
      fmt::format("the weights of {}, {} in fp32, do not fit into 95 % of the {} that are free",
                  model.source.string(),
                  text::bytes(weights),
                  text::bytes(available)),
      "end other programs, or use a machine with more memory");
}

void load_model(OpenModel& model, int threads) {
  prepare_process(threads > 0 ? threads : launch::usable_cores());
  model.alone = comm::solo_world();
  load_model(model, *model.alone);
}

void load_model(OpenModel& model, comm::World& world) {
  build(model, world);
  load(model);
}

}  // namespace tessera::engine
