// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/open_model.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/base/hub.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/launch.h"
#include "tessera/interop/huggingface/bitsandbytes.h"
#include "tessera/interop/label_thresholds.h"
#include "tessera/interop/model_source.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/interop/weights.h"
#include "tessera/interop/weights_of.h"
#include "tessera/launch/launch.h"
#include "tessera/models/hf_objective.h"
#include "tessera/models/model_source.h"
#include "tessera/models/objective.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/weight_gather.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/model_classes.h"
#include "tessera/tasks/task.h"
#include "tessera/tensor/init.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {
namespace {
namespace fs = std::filesystem;

parallel::WeightOptions weight_options(comm::World& world, ReadAs as, Copies copies) {
  parallel::WeightOptions weights;
  weights.working = as == ReadAs::F32 ? DType::F32 : DType::BF16;
  if (copies == Copies::One && world.group(mesh::AxisSet::dp()).size() > 1) {
    weights.residency = parallel::Residency::Sharded;
    weights.persistence_threshold = parallel::kPersistenceThreshold;
  }
  return weights;
}

/// Lets the weights rest on a disk.
void rest(OpenModel& out, parallel::WeightOptions& weights, const OpenOffload& offload) {
  memory::TierOptions disk = offload.disk;
  disk.folder = offload.weights.folder;
  out.tier = memory::tiers().get("disk")(disk);
  weights.residency = parallel::Residency::Resting;
  weights.persistence_threshold = 0;  // all of a block is read at once
  weights.in_memory = offload.weights.in_memory;
  weights.tier = out.tier.get();
  weights.tier_buffers = offload.weights.buffers;
}

void build(OpenModel& out,
           comm::World& world,
           parallel::WeightOptions weights,
           const parallel::ModelInstance* lender) {
  out.world = &world;
  out.model = std::make_unique<parallel::ModelInstance>(
      out.shape.model, std::move(weights), world, parallel::StageLayout(), lender);
  out.gather = std::make_unique<parallel::WeightGather>(*out.model, parallel::GatherOptions());
  out.executor = std::make_unique<parallel::Executor>(
      *out.model, std::vector<parallel::Policy*>{out.gather.get()});
}

/// Elements [begin, end) of what a segment holds of a parameter, to be written to `values`.
struct HeldRange {
  const Segment* segment = nullptr;
  std::int64_t begin = 0, end = 0;
  float* values = nullptr;
};

/// The ranges of the parameters of one flat buffer; `values` points to the rank's own elements of
/// it.
std::vector<HeldRange> ranges_of(const parallel::FlatGroup& group, float* values) {
  const std::int64_t numel = group.weights->own().numel();
  const std::int64_t first =
      numel == group.layout.numel() ? 0 : group.layout.shard_begin(group.ranks.fold->index);
  std::vector<HeldRange> out;
  for (const Segment& segment : group.layout.segments()) {
    const std::int64_t begin = std::max(segment.begin, first);
    const std::int64_t end = std::min(segment.end(), first + numel);
    if (begin >= end) continue;
    out.push_back({&segment, begin - segment.begin, end - segment.begin, values + (begin - first)});
  }
  return out;
}

using Fill = std::function<void(const std::vector<HeldRange>&)>;

/// `fill` writes fp32; weights of another dtype are rounded, one buffer at a time.
void fill_groups(OpenModel& out, const Fill& fill) {
  std::vector<HeldRange> all;
  for (parallel::FlatGroup& group : out.model->groups()) {
    if (group.borrowed) continue;
    const parallel::HeldPart held(*group.weights, /*changed=*/true);
    const bool rests = group.weights->resting() != nullptr;
    const at::Tensor& own = group.weights->own();
    if (!rests && own.is_cpu() && own.scalar_type() == at::kFloat) {
      const auto ranges = ranges_of(group, own.data_ptr<float>());
      all.insert(all.end(), ranges.begin(), ranges.end());
      continue;
    }
    const at::Tensor values = at::zeros(own.sizes(), at::kFloat);
    fill(ranges_of(group, values.data_ptr<float>()));
    own.copy_(values);
  }
  if (!all.empty()) fill(all);
}

Fill from_checkpoint(const fs::path& source) {
  return [opened = std::make_shared<const checkpoint::Checkpoint>(source)](
             const std::vector<HeldRange>& ranges) {
    std::vector<checkpoint::PieceBytes> pieces;
    for (const HeldRange& range : ranges) {
      pieces.push_back({range.segment->info->name,
                        DType::F32,
                        range.segment->info->shape,
                        {range.segment->box(), range.begin, range.end},
                        {reinterpret_cast<std::byte*>(range.values),
                         static_cast<std::size_t>(range.end - range.begin) * sizeof(float)}});
    }
    opened->load(pieces);
  };
}

Fill from_source(models::WeightSource source) {
  return [source = std::move(source)](const std::vector<HeldRange>& ranges) {
    for (const HeldRange& range : ranges)
      parallel::fill_held(source, *range.segment, range.begin, range.end, range.values);
  };
}

models::WeightSource hugging_face_source(const OpenModel& model) {
  const fs::path path = model.source / "config.json";
  const json::Value config = json::parse_strict(text::read_small_file(path), path.string());
  return interop::weights_from_hf(
      model.source, models::families().get(models::family_of_hf(config)), model.shape);
}

Fill source_of(const OpenModel& model) {
  if (model.weights) return from_source(model.weights);
  if (model.config) return from_checkpoint(model.source);
  return from_source(hugging_face_source(model));
}

void load(OpenModel& out) {
  const auto each = [&](const auto& work) {
    for (parallel::FlatGroup& group : out.model->groups()) {
      if (!group.borrowed) work(*group.weights);
    }
  };
  each([](parallel::WorkingWeights& weights) { weights.begin_write(); });
  const c10::NoGradGuard no_grad;
  fill_groups(out, source_of(out));
  each([](parallel::WorkingWeights& weights) { weights.written(); });
  each([](parallel::WorkingWeights& weights) { weights.settle(); });
}

// A converted checkpoint, one of another program, or a single file: there is no run to plan.
void find_imported(OpenModel& out) {
  const models::ModelSource source = models::open_model_source(out.source);
  out.beside = source.folder;
  out.tokenizer = models::source_tokenizer(source);
  config::Problems problems;
  out.shape = models::resolve(
      source.model, out.tokenizer->size(), std::nullopt, problems, {}, source.objective);
  problems.raise();
  out.weights = models::source_weights(source, out.shape);
}

// A run's resolved configuration describes shape and tokenizer completely; the source of its
// initial weights may no longer exist.
json::Value without_source(json::Value config) {
  std::erase_if(config.members(), [](const auto& member) {
    return member.first == "adapter" || member.first == "distill" || member.first == "qat";
  });
  if (json::Value* const model = config.find("model"); model != nullptr && model->is_object())
    std::erase_if(model->members(), [](const auto& member) {
      return member.first == "from" || member.first == "new_weights";
    });
  return config;
}

/// The classes of a run are those of its head: the data that it was trained on may be elsewhere by
/// now, or have others.
void keep_classes_of_head(const checkpoint::Meta& meta, json::Value& config) {
  const json::Value* const objective = meta.extra.find("objective");
  const json::Value* const saved =
      objective != nullptr && objective->is_object() ? objective->find("options") : nullptr;
  json::Value* const task = config.find("task");
  const json::Value* const type =
      task != nullptr && task->is_object() ? task->find("type") : nullptr;
  if (saved == nullptr || type == nullptr || !type->is_string()) return;
  if (tasks::tasks_of_classes().has(type->as_string()))
    tasks::keep_classes(*saved, (*task)["params"]);
}

void find_run(OpenModel& out) {
  const checkpoint::Checkpoint opened(out.source);
  interop::require_family(opened.meta(), out.source);
  if (opened.meta().extra.find("imported") != nullptr &&
      opened.meta().config.find("data") == nullptr) {
    return find_imported(out);
  }
  // The resolved batch sizes are consistent for the ranks of the training, not for the reading
  // process.
  const json::Value* ranks = opened.meta().extra.find("ranks");
  const auto trained_on = ranks == nullptr ? 1 : static_cast<int>(ranks->as_integer().value_or(1));
  out.config = without_source(opened.meta().config);
  keep_classes_of_head(opened.meta(), *out.config);
  const planner::Plan plan =
      planner::make_plan(*out.config, trained_on, (out.source / "manifest.json").string());
  out.shape = plan.model().resolved;
  out.trained_on = trained_on;
  out.tokenizer = planner::tokenizer_of(plan);
  // The weights that are read already include an adapter's change.
  const models::ModelSource source = models::open_model_source(out.source);
  if (!source.adapter.empty()) out.weights = models::source_weights(source, out.shape);
}

void find_hugging_face(OpenModel& out, bool needs_tokenizer) {
  const fs::path config_path = out.source / "config.json";
  json::Value config = json::parse_strict(text::read_small_file(config_path), config_path.string());
  interop::drop_bitsandbytes(config);
  const models::ModelOptions options = models::options_from_hf(config);
  if (needs_tokenizer) out.tokenizer = text::tokenizer_from_folder(out.source);
  config::Problems problems;
  out.shape =
      models::resolve(options,
                      needs_tokenizer ? out.tokenizer->size() : options->vocab_size.value_or(1),
                      std::nullopt,
                      problems,
                      {},
                      models::objective_of_hf(config));
  problems.raise();
}

}  // namespace

std::unique_ptr<OpenModel> find_model(const fs::path& path, bool needs_tokenizer) {
  TESSERA_REQUIRE(fs::exists(path),
                  Format,
                  fmt::format("{} does not exist", path.string()),
                  hub::is_model_name(path.string())
                      ? hub::how_to_fetch(path.string())
                      : "name a run folder, a checkpoint or a Hugging Face folder");
  auto out = std::make_unique<OpenModel>();
  if (const auto folder = checkpoint::newest_at(path)) {
    out->source = *folder;
    find_run(*out);
  } else if (interop::is_foreign_source(path) || interop::is_weight_file(path) ||
             interop::is_peft(path)) {
    out->source = path;
    find_imported(*out);
  } else if (fs::exists(path / "config.json") && !fs::exists(path / "metrics.jsonl") &&
             !fs::exists(path / "lock")) {
    out->source = path;
    find_hugging_face(*out, needs_tokenizer);
  } else {
    throw Error(Error::Kind::Format,
                fmt::format("{} holds no complete checkpoint and is not a Hugging Face folder",
                            path.string()),
                "name a run folder, a checkpoint, a Hugging Face folder or a file of weights");
  }
  interop::add_label_thresholds(out->source, out->shape.objective);
  return out;
}

void set_objective(OpenModel& model, const models::ObjectiveChoice& objective) {
  // The head that the model was saved with determines which files of a folder are read.
  if (!model.weights && !model.config) model.weights = hugging_face_source(model);
  model.shape.model = models::with_objective(model.shape.trunk, objective.name, objective.options);
  model.shape.objective = objective;
}

std::unique_ptr<OpenModel> initial_model(const planner::Plan& plan) {
  auto out = std::make_unique<OpenModel>();
  out->shape = plan.model().base ? *plan.model().base : plan.model().resolved;
  out->tokenizer = planner::tokenizer_of(plan);
  out->weights = plan.model().weights;
  if (out->weights) return out;
  out->weights = [seed = static_cast<std::uint64_t>(planner::seed_of(plan))](
                     const ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
    initialize_range(info, seed, begin, at::from_blob(to, {end - begin}, at::kFloat));
  };
  return out;
}

ReadAs read_as_from_name(std::string_view name) {
  const std::vector<std::string> names = {"fp32", "bf16", "int8"};
  const auto found = std::find(names.begin(), names.end(), name);
  TESSERA_REQUIRE(found != names.end(),
                  Config,
                  fmt::format("weights in {}: expected fp32, bf16 or int8", name),
                  text::suggestion(name, names));
  return static_cast<ReadAs>(found - names.begin());
}

std::string_view name(ReadAs as) {
  switch (as) {
    case ReadAs::F32:
      return "fp32";
    case ReadAs::BF16:
      return "bf16";
    case ReadAs::Int8:
      return "int8";
  }
  return "?";
}

void check_memory(const OpenModel& model,
                  int ranks,
                  std::uint64_t available,
                  ReadAs as,
                  int sharers,
                  const OpenModel* beside) {
  TESSERA_REQUIRE(
      as != ReadAs::Int8 || ranks == sharers,
      Unsupported,
      fmt::format("weights in int8 on {} ranks, of which {} compute each layer together: "
                  "8-bit weights are not sharded over the others",
                  ranks,
                  sharers),
      fmt::format("use --tensor {} (each rank then has a part of every layer), or bf16", ranks));
  // 8-bit matrices are made from 16-bit ones, which exist until the last matrix is converted.
  const std::uint64_t width = as == ReadAs::F32 ? 4 : as == ReadAs::BF16 ? 2 : 3;
  std::int64_t elements = 0;
  for (const OpenModel* const one : {&model, beside}) {
    if (one == nullptr) continue;
    for (const auto& param : nn::parameters_of(one->shape.model))
      elements += param->numel() * (param->numel() < parallel::kPersistenceThreshold ? ranks : 1);
  }
  const auto weights = static_cast<std::uint64_t>(elements) * width;
  if (static_cast<double>(weights) <= planner::kUsableMemory * static_cast<double>(available))
    return;
  throw Error(
      Error::Kind::Memory,
      fmt::format("the weights of {}{}, {} in {}, do not fit into 95 % of the {} that are free",
                  model.source.string(),
                  beside != nullptr ? " and of the reference model" : "",
                  text::bytes(weights),
                  name(as),
                  text::bytes(available)),
      "end other programs, or use a machine with more memory");
}

void load_model(OpenModel& model, int threads, ReadAs as) {
  prepare_process(threads > 0 ? threads : launch::usable_cores());
  model.alone = comm::solo_world();
  load_model(model, *model.alone, as);
}

void load_model(OpenModel& model,
                comm::World& world,
                ReadAs as,
                Copies copies,
                const std::optional<OpenOffload>& offload) {
  TESSERA_ASSERT(as != ReadAs::Int8 || world.size() == world.group(mesh::AxisSet::tp()).size());
  TESSERA_ASSERT(!offload || (as != ReadAs::Int8 && copies == Copies::One));
  parallel::WeightOptions weights = weight_options(world, as, copies);
  if (offload) rest(model, weights, *offload);
  build(model, world, std::move(weights), nullptr);
  load(model);
  if (as == ReadAs::Int8) model.model->to_int8();
}

void load_model(OpenModel& model, comm::World& world, const parallel::ModelInstance& lender) {
  parallel::WeightOptions weights = lender.weight_options();
  weights.frozen = [](const std::string&) { return true; };
  weights.apart = {};
  weights.packed = {};
  build(model, world, std::move(weights), &lender);
  for (int block = 0; block + 1 < model.model->num_blocks(); ++block) {
    for (const int group : model.model->groups_of(block)) {
      TESSERA_REQUIRE(
          model.model->groups()[static_cast<std::size_t>(group)].borrowed,
          Unsupported,
          fmt::format("the weights of {} in block {} are not those of the model that it shares its "
                      "trunk with: a part of them is trained or stored otherwise there",
                      model.source.string(),
                      model.model->name(block)),
          "let each of the two models have its own");
    }
  }
  load(model);
}

}  // namespace tessera::engine
