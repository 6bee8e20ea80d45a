// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/model_instance.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/int8_rows.h"

namespace tessera::parallel {

ModelInstance::ModelInstance(const nn::Model& model,
                             WeightOptions options,
                             comm::World& world,
                             StageLayout layout)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      stage_(world.mesh().coordinate(world.rank(), mesh::Axis::Pp)) {
  TESSERA_ASSERT(layout_.stages == world.mesh().size(mesh::Axis::Pp));
  const comm::Group& tensor = world.group(mesh::AxisSet::tp());
  if (tensor.size() > 1)
    tensor_ = nn::TensorParallel{&world, &tensor, options_.tensor, options_.sequence};
  const comm::Group& context = world.group({mesh::Axis::Cp});
  if (context.size() > 1) context_ = nn::ContextParallel{&world, &context, options_.context};
  build(model);
  group(world);
  attach();
  forget_other_stages();
}

void ModelInstance::build(const nn::Model& model) {
  const auto blocks = static_cast<int>(model.blocks.size());
  TESSERA_REQUIRE(
      layout_.bounds.empty() || (layout_.bounds.front() == 0 && layout_.bounds.back() == blocks),
      Bug,
      fmt::format("the stages hold blocks {} to {} of a model of {}",
                  layout_.bounds.front(),
                  layout_.bounds.back(),
                  blocks),
      "");
  for (int b = 0; b < blocks; ++b) {
    const nn::BlockSpec& spec = model.blocks[static_cast<std::size_t>(b)];
    Entry entry{spec.name, nullptr, {}, {}};
    if (layout_.stage_of_block(b) == stage_) {
      nn::Params params(spec.name);
      entry.block = nn::make_block(spec, params);
      entry.params = params.list();
    } else {
      for (auto& info : nn::declared_by(spec))
        entry.params.push_back(std::make_shared<Param>(std::move(info)));
    }
    for (const auto& param : entry.params) {
      if (options_.frozen && options_.frozen(param->info().name)) param->freeze();
      if (tensor_) nn::place(*param, *tensor_);
    }
    blocks_.push_back(std::move(entry));
  }
  if (blocks > 0 && layout_.stage_of_block(blocks - 1) != stage_) return;
  objective_ = blocks_.empty() ? nullptr : dynamic_cast<nn::Objective*>(blocks_.back().block.get());
  TESSERA_REQUIRE(objective_ != nullptr,
                  Shape,
                  "the last block of a model must be its objective",
                  "derive the last block from nn::Objective");
}

void ModelInstance::group(comm::World& world) {
  // A tied parameter has a buffer of its own, because its homes are different blocks.
  std::vector<Draft> drafts;
  std::vector<std::pair<int, int>> order;  // of all stages: draft, segment
  std::map<std::string, int> by_name;
  std::int64_t persistent = 0;
  for (int b = 0; b < num_blocks(); ++b) {
    const Entry& entry = blocks_[static_cast<std::size_t>(b)];
    for (const auto& param : entry.params) {
      const ParamInfo& info = param->info();
      const bool known = info.tied && by_name.contains(info.name);
      const bool sharded = options_.residency == Residency::Sharded;
      Residency residency = options_.residency;
      if (sharded && !known && info.room_numel() < options_.persistence_threshold &&
          persistent + info.room_numel() <= options_.persistent) {
        residency = Residency::Whole;
        persistent += info.room_numel();
      }
      const bool alone = info.tied || (options_.tables_apart && info.role == Role::TokenTable);
      std::string key = alone ? info.name : entry.name + (info.trainable ? "" : " (frozen)");
      if (!alone && sharded && residency == Residency::Whole) key += " (persistent)";
      const auto [it, fresh] = by_name.emplace(key, static_cast<int>(drafts.size()));
      if (fresh) drafts.push_back({key, info.trainable, residency, {}, {}});
      Draft& draft = drafts[static_cast<std::size_t>(it->second)];
      if (draft.homes.empty() || draft.homes.back().block != b) draft.homes.push_back({b, {}});
      draft.homes.back().params.push_back(param.get());
      if (draft.homes.size() == 1) {
        order.emplace_back(it->second, static_cast<int>(draft.infos.size()));
        draft.infos.push_back(param->shared_info());
      } else {
        TESSERA_REQUIRE(
            draft.infos.front()->shape == info.shape,
            Bug,
            fmt::format("the blocks that share {} declare it with different shapes", info.name),
            "");
      }
    }
  }
  for (const auto& [d, segment] : order) {
    const Draft& draft = drafts[static_cast<std::size_t>(d)];
    places_.push_back({draft.infos[static_cast<std::size_t>(segment)],
                       layout_.stage_of_block(draft.homes.front().block),
                       draft.homes.back().block,
                       draft.homes.size() > 1});
  }
  std::vector<int> group_of_draft;
  for (Draft& draft : drafts)
    group_of_draft.push_back(keep(draft, world));
  for (const auto& [d, segment] : order) {
    const int g = group_of_draft[static_cast<std::size_t>(d)];
    if (g >= 0) order_.emplace_back(g, segment);
  }
}

/// Makes a group of the draft where this stage uses it: its index, or -1.
int ModelInstance::keep(Draft& draft, comm::World& world) {
  std::vector<int> stages;
  std::vector<Home> here;
  const auto index = static_cast<int>(groups_.size());
  for (Home& home : draft.homes) {
    stages.push_back(layout_.stage_of_block(home.block));
    if (stages.back() != stage_) continue;
    blocks_[static_cast<std::size_t>(home.block)].groups.push_back(index);
    here.push_back(std::move(home));
  }
  if (here.empty()) return -1;
  const comm::Group& ranks = world.group(mesh::AxisSet::dp());
  FlatLayout layout(draft.name, draft.infos, ranks.size());
  WorkingWeights weights(world, ranks, layout, options_.working, draft.residency);
  const bool counted = stages.front() == stage_;
  groups_.push_back({std::move(layout),
                     draft.trainable,
                     std::move(here),
                     std::move(weights),
                     std::move(stages),
                     counted});
  return index;
}

void ModelInstance::attach() {
  for (FlatGroup& group : groups_) {
    for (const Home& home : group.homes) {
      for (std::size_t i = 0; i < home.params.size(); ++i) {
        at::Tensor view = view_of(group.weights.whole(), group.layout.segments()[i]).detach();
        view.set_requires_grad(group.trainable);
        home.params[i]->attach(std::move(view));
      }
    }
  }
}

void ModelInstance::to_int8() {
  const c10::NoGradGuard no_grad;
  const memory::ScopedTag tag(memory::Tag::Parameters);
  for (FlatGroup& group : groups_) {
    for (std::size_t i = 0; i < group.layout.segments().size(); ++i) {
      const Param& first = *group.homes.front().params[i];
      const at::Tensor& weight = first.tensor();
      const bool is_matrix = decays(first.info());
      ops::Int8Rows narrow;
      if (is_matrix) narrow = ops::to_int8(weight.view({-1, weight.size(-1)}));
      const at::Tensor copy =
          is_matrix ? narrow.rows_OI.view(weight.sizes()) : weight.to(at::kBFloat16).clone();
      for (const Home& home : group.homes)
        home.params[i]->attach_int8(copy, narrow.scales_O);
    }
    group.weights.forget();
  }
}

void ModelInstance::forget_other_stages() {
  for (int b = 0; b < num_blocks(); ++b) {
    if (layout_.stage_of_block(b) != stage_) blocks_[static_cast<std::size_t>(b)].params.clear();
  }
}

std::int64_t ModelInstance::num_parameters() const {
  std::int64_t total = 0;
  for (const ParamPlace& place : places_)
    total += place.info->numel();
  return total;
}

}  // namespace tessera::parallel
