// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/adapter.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/models/fingerprint.h"
#include "tessera/models/model_source.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/packed_weights.h"
#include "tessera/tensor/flat_buffer.h"
#include "tessera/tensor/init.h"

namespace tessera::planner {
namespace {

models::WeightSource from_seed(std::uint64_t seed) {
  return [seed](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    initialize_range(info, seed, begin, at::from_blob(out, {end - begin}, at::kFloat));
  };
}

// Takes the options of the folder with the adapter's initial values, if the configuration does not
// set them.
void take_options(models::AdapterOptions& options,
                  config::Problems& problems,
                  const config::Origins& origins) {
  const models::AdapterOptions written = options;
  for (const char* key : {"r",
                          "alpha",
                          "dropout",
                          "targets",
                          "target_parameters",
                          "exclude",
                          "rank_pattern",
                          "alpha_pattern",
                          "layers",
                          "layers_pattern",
                          "modules_to_save",
                          "bias",
                          "rank_stabilized"}) {
    const std::string path = std::string("adapter.") + key;
    if (!origins.given(path)) continue;
    problems.add(origins.place(path),
                 path,
                 fmt::format("{} says it already", written.from),
                 "remove it, or give adapter.type and all that differs from the defaults");
  }
  options = models::open_adapter_options(written.from);
  options.from = written.from;
  options.lr_ratio = written.lr_ratio;
  options.quantize_base = written.quantize_base;
  options.double_quantization = written.double_quantization;
}

// Plans the storage of matrices in fewer bits.
void pack_base(ModelPlan& model,
               parallel::Layout& layout,
               std::shared_ptr<const models::Adapter> adapter,
               std::vector<std::string>& notes) {
  const models::AdapterOptions& options = adapter->options;
  if (adapter->quantized.empty()) return;
  const bool nf4 = options.quantize_base == models::QuantizedBase::Nf4;
  model.rules.packing = {
      .packing = nf4 ? parallel::Packing::Nf4 : parallel::Packing::Int8,
      .double_scales = nf4 && options.double_quantization,
  };
  std::int64_t numel = 0;
  for (const auto& info : nn::parameters_of(model.base->model)) {
    if (adapter->quantized.contains(info->name)) numel += info->numel();
  }
  notes.push_back(fmt::format("adapter.quantize_base: {} of {} parameters are kept in {}{}",
                              text::with_commas(numel),
                              text::with_commas(model.base->num_parameters),
                              nf4 ? "4 bits" : "8 bits",
                              model.options->from
                                  ? ""
                                  : "; checkpoints of a base that begins from the seed do not "
                                    "hold it, and only this run reads them"));
  // Unpacking weights ahead of their use would only take memory: it does not wait for other ranks.
  if (!layout.gathers_weights() && !layout.gather.prefetch) layout.gather.prefetch = 0;
  model.rules.packed = [adapter = std::move(adapter)](const std::string& name) {
    return adapter->quantized.contains(name);
  };
}

// PEFT accepts a name or pattern that fits nothing, so that one list serves several models.
void tell_unused(const models::Adapter& adapter, std::vector<std::string>& notes) {
  std::vector<std::string> modules;
  for (const models::AdapterModule& module : adapter.modules)
    modules.push_back(module.part.module);
  std::vector<std::string> parameters;
  for (const models::AdapterModule& module : adapter.modules)
    parameters.push_back(module.parameter);
  const models::AdapterRules rules(adapter.options);
  for (const std::string& unused : rules.unused_parameters(parameters))
    notes.push_back(
        fmt::format("adapter.target_parameters \"{}\" is not a stacked matrix of experts "
                    "of this model and has no effect",
                    unused));
  for (const std::string& unused : rules.unused(modules))
    notes.push_back(
        fmt::format("adapter.{} fits none of the adapted layers and has no effect; they are {}",
                    unused,
                    text::join_some(modules, ", ")));
}

}  // namespace

void plan_adapter(models::AdapterOptions& options,
                  ModelPlan& model,
                  parallel::Layout& layout,
                  std::vector<std::string>& notes,
                  config::Problems& problems,
                  const config::Origins& origins) {
  if (!options.from.empty() && !options.enabled()) take_options(options, problems, origins);
  if (!options.enabled()) {
    if (origins.given("adapter")) {
      problems.add(origins.place("adapter"),
                   "adapter.type",
                   "the adapter has no type",
                   "set it to lora, rslora or dora, or remove the section",
                   config::Problems::Kind::Missing);
    }
    return;
  }
  if (model.options->new_weights) {
    problems.add(origins.place("model.new_weights"),
                 "model.new_weights",
                 "an adapter changes weights that are frozen, and these would be random",
                 "remove it, or the section adapter");
    return;
  }
  if (model.resolved.description.find("family") == nullptr) {
    problems.add(origins.place("adapter"),
                 "adapter",
                 "the program's own model has no names for its layers",
                 "remove the section");
    return;
  }
  if (!options.double_quantization && options.quantize_base != models::QuantizedBase::Nf4) {
    problems.add(origins.place("adapter.double_quantization"),
                 "adapter.double_quantization",
                 "has no effect without adapter.quantize_base nf4",
                 "remove it, or set adapter.quantize_base to nf4");
    return;
  }
  const models::WeightMap& map = models::families().get(model.options.family()).weight_map;
  auto adapter =
      std::make_shared<const models::Adapter>(models::find_adapter(options, model.resolved, map));
  for (const models::AdapterModule& module : adapter->modules) {
    if (!module.table || layout.tensor == parallel::TensorLayout::OneD) continue;
    problems.add(origins.place("adapter.targets"),
                 "adapter.targets",
                 fmt::format("not built: the adapter of a table ({}) on a grid of ranks",
                             module.part.module),
                 "leave it out, or set parallel.tensor.mode to 1d");
    return;
  }
  for (const models::AdapterModule& module : adapter->modules) {
    if (module.experts == 0 || options.dropout == 0) continue;
    problems.add(origins.place("adapter.dropout"),
                 "adapter.dropout",
                 fmt::format("adapters of experts ({}) have no dropout", module.part.module),
                 module.parameter.empty() ? "set it to 0, or leave experts out with adapter.exclude"
                                          : "set it to 0, or remove adapter.target_parameters");
    return;
  }
  model.base = model.resolved;
  model.resolved.model = models::adapted(model.resolved.model, *adapter);
  std::int64_t trained = 0;
  for (const auto& [name, info] : adapter->parameters)
    trained += info->numel();
  notes.push_back(fmt::format("adapter: {} of {} parameters are trained, in {} layers",
                              text::with_commas(trained),
                              text::with_commas(model.base->num_parameters + trained),
                              adapter->modules.size()));
  tell_unused(*adapter, notes);
  pack_base(model, layout, adapter, notes);
  model.adapter = std::move(adapter);
}

namespace {

// The weights as they are after packing and unpacking. A packed parameter is read whole, and the
// last one is kept, because its scales may depend on all of it.
models::WeightSource unpacked(models::WeightSource base,
                              std::shared_ptr<const models::Adapter> adapter,
                              const parallel::PackingOptions& packing) {
  struct Last {
    std::mutex mutex;  // ranks that are threads share the source
    std::string name;
    at::Tensor values;
  };
  return [base = std::move(base),
          adapter = std::move(adapter),
          packing,
          last = std::make_shared<Last>()](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    if (!adapter->quantized.contains(info.name)) return base(info, begin, end, out);
    const std::scoped_lock lock(last->mutex);
    if (last->name != info.name) {
      const FlatLayout layout(info.name, {std::make_shared<const ParamInfo>(info)}, /*shards=*/1);
      parallel::PackedWeights packed(layout, packing);
      last->name.clear();
      last->values = at::empty({layout.numel()}, at::kFloat);
      base(info, 0, info.numel(), last->values.data_ptr<float>());
      packed.pack(0, last->values.narrow(0, 0, info.numel()), {});
      packed.unpack(last->values);
      last->name = info.name;
    }
    std::copy_n(last->values.const_data_ptr<float>() + begin, end - begin, out);
  };
}

// DoRA's magnitudes begin as the norms of the rows that layers compute with.
models::WeightSource with_norms_of_packed(models::WeightSource first,
                                          models::WeightSource base,
                                          const ModelPlan& model,
                                          std::uint64_t seed) {
  const models::Adapter& adapter = *model.adapter;
  if (!adapter.options.has_magnitude() || adapter.quantized.empty()) return first;
  std::set<std::string> magnitudes;
  for (const models::AdapterModule& module : adapter.modules)
    magnitudes.insert(module.magnitude());
  models::WeightSource norms = models::first_adapter_weights(
      adapter, unpacked(std::move(base), model.adapter, model.rules.packing), seed);
  return [first = std::move(first), norms = std::move(norms), magnitudes = std::move(magnitudes)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    (magnitudes.contains(info.name) ? norms : first)(info, begin, end, out);
  };
}

}  // namespace

void plan_adapter_weights(ModelPlan& model, const std::string& from, std::uint64_t seed) {
  if (model.adapter == nullptr) return;
  const bool from_files = static_cast<bool>(model.weights);
  models::WeightSource base = from_files ? model.weights : from_seed(seed);
  if (from_files) model.base_fingerprint = models::fingerprint_of(*model.base, base);
  if (from.empty()) {
    model.weights = with_norms_of_packed(
        models::first_adapter_weights(*model.adapter, base, seed), base, model, seed);
    return;
  }
  model.weights =
      [adapter = model.adapter,
       base = std::move(base),
       own = models::open_adapter_weights(
           from, *model.adapter, models::families().get(model.options.family()).weight_map)](
          const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
        (adapter->trains(info.name) ? own : base)(info, begin, end, out);
      };
}

}  // namespace tessera::planner
