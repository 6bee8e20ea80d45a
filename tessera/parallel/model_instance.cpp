// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/model_instance.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "tessera/tensor/dtype.h"

namespace tessera::parallel {

ModelInstance::ModelInstance(const nn::Model& model,
                             int shards,
                             DType working,
                             comm::Transport& transport)
    : working_(working) {
  build(model);
  group(shards);
  attach(transport);
}

void ModelInstance::build(const nn::Model& model) {
  for (const nn::BlockSpec& spec : model.blocks) {
    Entry entry{spec.name, spec.make(), {}, {}};
    nn::Params params(spec.name);
    entry.block->declare(params);
    entry.params = params.list();
    blocks_.push_back(std::move(entry));
  }
  objective_ = blocks_.empty() ? nullptr : dynamic_cast<nn::Objective*>(blocks_.back().block.get());
  TESSERA_REQUIRE(objective_ != nullptr,
                  Shape,
                  "the last block of a model must be its objective",
                  "derive the last block from nn::Objective");
}

void ModelInstance::group(int shards) {
  // A tied parameter has a buffer of its own, because its homes are different blocks.
  struct Draft {
    std::string name;
    bool trainable;
    std::vector<std::shared_ptr<const ParamInfo>> infos;
    std::vector<Home> homes;
  };
  std::vector<Draft> drafts;
  std::map<std::string, int> by_name;
  for (int b = 0; b < num_blocks(); ++b) {
    Entry& entry = blocks_[static_cast<std::size_t>(b)];
    for (const auto& param : entry.params) {
      const ParamInfo& info = param->info();
      const std::string key =
          info.tied ? info.name : entry.name + (info.trainable ? "" : " (frozen)");
      const auto [it, fresh] = by_name.emplace(key, static_cast<int>(drafts.size()));
      if (fresh) drafts.push_back({key, info.trainable, {}, {}});
      Draft& draft = drafts[static_cast<std::size_t>(it->second)];
      if (draft.homes.empty() || draft.homes.back().block != b) {
        draft.homes.push_back({b, {}});
        entry.groups.push_back(it->second);
      }
      draft.homes.back().params.push_back(param.get());
      if (draft.homes.size() == 1) {
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
  for (Draft& draft : drafts) {
    groups_.push_back({FlatLayout(draft.name, draft.infos, shards),
                       draft.trainable,
                       std::move(draft.homes),
                       nullptr,
                       {}});
  }
}

void ModelInstance::attach(comm::Transport& transport) {
  for (FlatGroup& group : groups_) {
    const std::int64_t numel = group.layout.numel();
    group.region = transport.allocate(static_cast<std::size_t>(numel) * size_of(working_),
                                      memory::Tag::Parameters);
    group.working = tensor_over(group.region, numel, working_);
    for (const Home& home : group.homes) {
      for (std::size_t i = 0; i < home.params.size(); ++i) {
        at::Tensor view = view_of(group.working, group.layout.segments()[i]).detach();
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
      total += segment.numel;
  }
  return total;
}

}  // namespace tessera::parallel
