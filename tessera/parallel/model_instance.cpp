// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/model_instance.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::parallel {

ModelInstance::ModelInstance(const nn::Model& model, WeightOptions options, comm::World& world)
    : options_(std::move(options)) {
  const comm::Group& tensor = world.group(mesh::AxisSet::tp());
  if (tensor.size() > 1)
    tensor_ = nn::TensorParallel{&world, &tensor, options_.tensor, options_.sequence};
  build(model);
  group(world);
  attach();
}

void ModelInstance::build(const nn::Model& model) {
  for (const nn::BlockSpec& spec : model.blocks) {
    Entry entry{spec.name, spec.make(), {}, {}};
    nn::Params params(spec.name);
    entry.block->declare(params);
    entry.params = params.list();
    for (const auto& param : entry.params) {
      if (options_.frozen && options_.frozen(param->info().name)) param->freeze();
      if (tensor_) nn::place(*param, *tensor_);
    }
    blocks_.push_back(std::move(entry));
  }
  objective_ = blocks_.empty() ? nullptr : dynamic_cast<nn::Objective*>(blocks_.back().block.get());
  TESSERA_REQUIRE(objective_ != nullptr,
                  Shape,
                  "the last block of a model must be its objective",
                  "derive the last block from nn::Objective");
}

void ModelInstance::group(comm::World& world) {
  // A tied parameter has a buffer of its own, because its homes are different blocks.
  struct Draft {
    std::string name;
    bool trainable;
    Residency residency;
    std::vector<std::shared_ptr<const ParamInfo>> infos;
    std::vector<Home> homes;
  };
  std::vector<Draft> drafts;
  std::map<std::string, int> by_name;
  std::int64_t persistent = 0;
  for (int b = 0; b < num_blocks(); ++b) {
    Entry& entry = blocks_[static_cast<std::size_t>(b)];
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
      std::string key = info.tied ? info.name : entry.name + (info.trainable ? "" : " (frozen)");
      if (!info.tied && sharded && residency == Residency::Whole) key += " (persistent)";
      const auto [it, fresh] = by_name.emplace(key, static_cast<int>(drafts.size()));
      if (fresh) drafts.push_back({key, info.trainable, residency, {}, {}});
      Draft& draft = drafts[static_cast<std::size_t>(it->second)];
      if (draft.homes.empty() || draft.homes.back().block != b) {
        draft.homes.push_back({b, {}});
        entry.groups.push_back(it->second);
      }
      draft.homes.back().params.push_back(param.get());
      if (draft.homes.size() == 1) {
        order_.emplace_back(it->second, static_cast<int>(draft.infos.size()));
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
  const comm::Group& ranks = world.group(mesh::AxisSet::dp());
  for (Draft& draft : drafts) {
    FlatLayout layout(draft.name, draft.infos, ranks.size());
    WorkingWeights weights(world, ranks, layout, options_.working, draft.residency);
    groups_.push_back(
        {std::move(layout), draft.trainable, std::move(draft.homes), std::move(weights)});
  }
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

std::int64_t ModelInstance::num_parameters() const {
  std::int64_t total = 0;
  for (const FlatGroup& group : groups_) {
    for (const Segment& segment : group.layout.segments())
      total += segment.info->numel();
  }
  return total;
}

}  // namespace tessera::parallel
