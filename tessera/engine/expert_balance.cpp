// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expert_balance.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/mesh/mesh.h"
#include "tessera/nn/denominators.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::engine {
namespace {

/// Appends the metrics of a step.
void summarize(const std::vector<report::LayerLoads>& layers, bool drops, Metrics& metrics) {
  if (layers.empty()) return;
  double most = 0.0, entropy = 0.0;
  std::int64_t choices = 0, dropped = 0;
  for (const report::LayerLoads& layer : layers) {
    most = std::max(most, layer.unevenness());
    entropy += layer.relative_entropy();
    choices += layer.total();
    dropped += layer.dropped;
  }
  metrics.push_back({"expert_load", most, 1.0});
  metrics.push_back({"expert_entropy", entropy / static_cast<double>(layers.size()), 1.0});
  if (!drops) return;
  const double share =
      choices == 0 ? 0.0 : static_cast<double>(dropped) / static_cast<double>(choices);
  metrics.push_back({"dropped_choices", share, 1.0});
}

}  // namespace

bool ExpertBalance::has_experts(const nn::Model& model) {
  const nn::ParamInfos all = nn::parameters_of(model);
  return std::any_of(all.begin(), all.end(), [](const auto& info) { return info->stacked(); });
}

void ExpertBalance::count(const nn::Batch& batch) {
  const std::vector<double> of_micro = nn::common_denominators(batch, model_.context_parallel());
  for (std::size_t i = 0; i < counts_.size(); ++i)
    counts_[i] += of_micro[i];
}

std::vector<double> ExpertBalance::take_counts() {
  std::vector<double> out = std::exchange(counts_, {0.0, 0.0, 0.0});
  // Every stage and every tensor-parallel rank loads the same samples.
  const mesh::AxisSet same = mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet::tp();
  if (world_.group(same).index > 0) std::fill(out.begin(), out.end(), 0.0);
  return out;
}

std::vector<ExpertBalance::Layer> ExpertBalance::take_loads() {
  std::vector<Layer> layers;
  std::vector<double> all;
  for (int chunk = 0; chunk < model_.layout().chunks; ++chunk) {
    const auto [first, last] = model_.blocks_of(chunk);
    for (int b = first; b < last; ++b) {
      auto* const block = dynamic_cast<nn::HasExperts*>(&model_.block(b));
      if (block == nullptr || block->router().load == nullptr) continue;
      Layer layer = {.block = b, .router = block->router(), .counts = {}};
      const nn::ExpertLoad::Counts counts = layer.router.load->take();
      layer.counts.assign(counts.chosen_E.begin(), counts.chosen_E.end());
      layer.counts.resize(static_cast<std::size_t>(layer.router.num_experts) + 1, 0.0);
      layer.counts.back() = static_cast<double>(counts.dropped);
      all.insert(all.end(), layer.counts.begin(), layer.counts.end());
      layers.push_back(std::move(layer));
    }
  }
  all = world_.all_reduce(world_.group(mesh::AxisSet::tokens()),
                          std::move(all),
                          comm::Op::Sum,
                          TESSERA_HERE("loads of experts"));
  auto from = all.begin();
  for (Layer& layer : layers) {
    std::copy_n(from, layer.counts.size(), layer.counts.begin());
    from += static_cast<std::ptrdiff_t>(layer.counts.size());
  }
  return layers;
}

/// The loads of the layers of every stage, by block. A stage sends for each of its layers the
/// block, the number of experts, whether the layer drops choices, and the counts.
ExpertBalance::AllLoads ExpertBalance::of_all_stages(const std::vector<Layer>& layers) {
  std::vector<double> mine;
  for (const Layer& layer : layers) {
    mine.insert(mine.end(),
                {static_cast<double>(layer.block),
                 static_cast<double>(layer.router.num_experts),
                 layer.router.drops ? 1.0 : 0.0});
    mine.insert(mine.end(), layer.counts.begin(), layer.counts.end());
  }
  std::vector<double> all = mine;
  std::size_t width = mine.size();
  if (stages_ > 1) {
    const comm::Group& column = world_.group({mesh::Axis::Pp});
    width = static_cast<std::size_t>(world_
                                         .all_reduce(column,
                                                     {static_cast<double>(mine.size())},
                                                     comm::Op::Max,
                                                     TESSERA_HERE("number of loads of experts"))
                                         .front());
    mine.resize(width, -1.0);
    all = world_.all_gather(column, mine, TESSERA_HERE("loads of experts of all stages"));
  }
  AllLoads out;
  std::map<int, report::LayerLoads> by_block;
  for (std::size_t stage = 0; width > 0 && stage < all.size() / width; ++stage) {
    for (std::size_t at = stage * width; at < (stage + 1) * width && all[at] >= 0.0;) {
      const int block = static_cast<int>(all[at]);
      const auto experts = static_cast<std::size_t>(all[at + 1]);
      report::LayerLoads& layer = by_block[block];
      layer.layer = model_.name(block);
      out.drops = out.drops || all[at + 2] > 0.0;
      at += 3;
      for (std::size_t e = 0; e < experts; ++e)
        layer.chosen.push_back(static_cast<std::int64_t>(all[at++]));
      layer.dropped = static_cast<std::int64_t>(all[at++]);
    }
  }
  for (auto& [block, layer] : by_block)
    out.layers.push_back(std::move(layer));
  return out;
}

std::vector<report::LayerLoads> ExpertBalance::finish(bool updates, Metrics& metrics) {
  const std::vector<Layer> layers = take_loads();
  AllLoads all = of_all_stages(layers);
  summarize(all.layers, all.drops, metrics);
  if (!updates) return std::move(all.layers);
  for (const Layer& layer : layers) {
    if (layer.router.correction != nullptr && layer.router.correction_rate > 0.0) correct(layer);
  }
  if (stages_ > 1 && model_.working() != DType::F32) share_between_stages();
  return std::move(all.layers);
}

/// Raises the correction of each expert with fewer choices than the mean, and lowers the others'.
void ExpertBalance::correct(const Layer& layer) {
  const auto experts = static_cast<std::size_t>(layer.router.num_experts);
  const double total = std::accumulate(layer.counts.begin(), layer.counts.end() - 1, 0.0);
  if (total == 0.0) return;
  Values& values = corrections_of(layer);
  for (std::size_t e = 0; e < experts; ++e) {
    const double excess = layer.counts[e] * static_cast<double>(experts) - total;
    if (excess == 0.0) continue;
    const auto rate = static_cast<float>(layer.router.correction_rate);
    values[e] += excess > 0.0 ? -rate : rate;
  }
  write(layer, values);
}

ExpertBalance::Values& ExpertBalance::corrections_of(const Layer& layer) {
  Values& values = corrections_[layer.block];
  if (!values.empty()) return values;
  for (parallel::FlatGroup& group : model_.groups()) {
    for (const FlatParam& param : group.layout.params()) {
      if (param.info->name != layer.router.correction->info().name) continue;
      group.weights->wait();
      const at::Tensor now =
          view_of(group.weights->whole(), param).to(at::kCPU, at::kFloat).contiguous();
      const auto* const from = now.const_data_ptr<float>();
      values.assign(from, from + now.numel());
      if (group.weights->comes_and_goes()) group.weights->release();
      return values;
    }
  }
  TESSERA_ASSERT(false);
}

/// Writes the values to this rank's part of the buffer that holds them.
void ExpertBalance::write(const Layer& layer, const Values& values) {
  for (parallel::FlatGroup& group : model_.groups()) {
    const FlatLayout& layout = group.layout;
    for (const FlatParam& param : layout.params()) {
      if (param.info->name != layer.router.correction->info().name) continue;
      group.weights->begin_write();
      const at::Tensor& own = group.weights->own();
      const std::int64_t begin =
          own.numel() == layout.numel() ? 0 : layout.shard_begin(group.ranks.fold->index);
      const Segment& segment = layout.segments_of(param).front();
      const Segment mine = segment.within(begin, begin + own.numel());
      if (mine.numel > 0) {
        const at::Tensor all =
            at::from_blob(const_cast<float*>(values.data()), {segment.numel}, at::kFloat);
        own.narrow(0, mine.begin - begin, mine.numel)
            .copy_(all.narrow(0, mine.begin - segment.begin, mine.numel));
      }
      group.weights->written();
      group.weights->settle();
      return;
    }
  }
}

/// Gives the corrections of all stages to every stage, because one rank writes them to checkpoints.
void ExpertBalance::share_between_stages() {
  const comm::Group& column = world_.group({mesh::Axis::Pp});
  double most = 0.0;
  for (const auto& [block, values] : corrections_)
    most = std::max(most, static_cast<double>(values.size()));
  most =
      world_.all_reduce(column, {most}, comm::Op::Max, TESSERA_HERE("number of experts")).front();
  const auto width = static_cast<std::size_t>(most) + 1;  // the number of values, then these
  std::vector<double> all(width * static_cast<std::size_t>(model_.num_blocks()), 0.0);
  for (int chunk = 0; chunk < model_.layout().chunks; ++chunk) {
    const auto [first, last] = model_.blocks_of(chunk);
    for (int b = first; b < last; ++b) {
      const auto found = corrections_.find(b);
      if (found == corrections_.end()) continue;
      double* const to = all.data() + static_cast<std::size_t>(b) * width;
      to[0] = static_cast<double>(found->second.size());
      std::copy(found->second.begin(), found->second.end(), to + 1);
    }
  }
  all = world_.all_reduce(
      column, std::move(all), comm::Op::Sum, TESSERA_HERE("corrections of routers"));
  for (int b = 0; b < model_.num_blocks(); ++b) {
    const double* const from = all.data() + static_cast<std::size_t>(b) * width;
    if (from[0] == 0.0) continue;
    corrections_[b].assign(from + 1, from + 1 + static_cast<std::ptrdiff_t>(from[0]));
  }
}

json::Value ExpertBalance::state() const {
  if (model_.working() == DType::F32 || corrections_.empty()) return {};
  json::Value out = json::Value::object();
  for (const auto& [block, values] : corrections_) {
    json::Value list = json::Value::array();
    for (const float value : values)
      list.push_back(json::Value::number(static_cast<double>(value)));
    out[model_.name(block)] = std::move(list);
  }
  return out;
}

void ExpertBalance::restore(const json::Value* state) {
  corrections_.clear();
  if (state == nullptr || !state->is_object() || model_.working() == DType::F32) return;
  for (int b = 0; b < model_.num_blocks(); ++b) {
    const json::Value* const list = state->find(model_.name(b));
    if (list == nullptr) continue;
    Values& values = corrections_[b];
    for (const json::Value& value : list->items())
      values.push_back(static_cast<float>(value.as_double()));
  }
}

}  // namespace tessera::engine
