// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/model_instance.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/nn/low_rank_names.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/parallel/side_stream.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {

ModelInstance::ModelInstance(const nn::Model& model,
                             WeightOptions options,
                             comm::World& world,
                             StageLayout layout,
                             const ModelInstance* lender)
    : options_(std::move(options)),
      device_(device_of(world)),
      layout_(std::move(layout)),
      stage_(world.mesh().coordinate(world.rank(), mesh::Axis::Pp)) {
  TESSERA_ASSERT(layout_.stages == world.mesh().size(mesh::Axis::Pp));
  const comm::Group& tensor = world.group(mesh::AxisSet::tp());
  if (tensor.size() > 1)
    tensor_ = nn::TensorParallel{&world, &tensor, options_.tensor, options_.sequence};
  const comm::Group& context = world.group({mesh::Axis::Cp});
  if (context.size() > 1) context_ = nn::ContextParallel{&world, &context, options_.context};
  const comm::Group& experts = world.group(options_.experts.ep);
  if (experts.size() > 1 || world.group(options_.experts.etp).size() > 1)
    experts_ = nn::ExpertParallel{&world, &experts, options_.experts};
  dense_ranks_ = ranks_of(world, dense_axes());
  const bool on_device = !device_.is_cpu() && device_.type() != c10::DeviceType::Meta;
  if (on_device) {
    uploads_ = std::make_shared<Uploads>(device_);
  } else {
    options_.in_memory_on_host = false;
    if (options_.residency == Residency::OnHost) options_.residency = Residency::Sharded;
  }
  if (options_.tier != nullptr) {
    resting_ = std::make_shared<UnitBuffers>(
        *options_.tier, options_.tier_buffers, memory::Tag::Parameters);
  }
  build(model);
  group(world, lender);
  attach();
  bind_tiles(world);
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
      nn::place(*param, tensor_parallel(), expert_parallel());
    }
    if (options_.tiles) entry.params = divided(std::move(entry.params));
    blocks_.push_back(std::move(entry));
  }
  if (blocks > 0 && layout_.stage_of_block(blocks - 1) != stage_) return;
  objective_ = blocks_.empty() ? nullptr : dynamic_cast<nn::Objective*>(blocks_.back().block.get());
  TESSERA_REQUIRE(objective_ != nullptr,
                  Shape,
                  "the last block of a model must be its objective",
                  "derive the last block from nn::Objective");
}

/// Replaces parameters by their tiles, and lets layers compute with these.
std::vector<std::shared_ptr<Param>> ModelInstance::divided(
    std::vector<std::shared_ptr<Param>> params) {
  std::vector<std::shared_ptr<Param>> out;
  for (std::shared_ptr<Param>& param : params) {
    const nn::ParamInfos infos = tiles_of(param->shared_info(), options_.tiles(param->info()));
    if (infos.size() == 1) {
      out.push_back(std::move(param));
      continue;
    }
    std::vector<nn::WeightTile> tiles;
    for (const auto& info : infos) {
      const std::int64_t rows_of_index = info->numel() / info->shape.front() / info->shape.back();
      const mesh::Box& box = info->box;
      tiles.push_back({std::make_shared<Param>(info),
                       box.begin.front() * rows_of_index,
                       (box.end.front() - box.begin.front()) * rows_of_index});
      out.push_back(tiles.back().param);
    }
    auto form = std::make_shared<nn::TiledForm>(std::move(tiles), *param);
    param->extend(form);
    tiled_.emplace_back(std::move(param), std::move(form));
  }
  return out;
}

/// Lets the layers fetch and release the weights of their tiles.
void ModelInstance::bind_tiles(comm::World& world) {
  if (tiled_.empty()) return;
  tile_gather_ = std::make_unique<TileGather>(world);
  std::map<const Param*, std::size_t> numbers;
  for (const FlatGroup& group : groups_) {
    if (!group.tile) continue;
    WorkingWeights& weights = *group.weights;
    const bool gathers = weights.comes_and_goes() && group.ranks.inner->size() > 1;
    const std::size_t number = tile_gather_->add(weights, gathers ? group.ranks.inner : nullptr);
    for (const BlockUse& use : group.uses) {
      for (const Param* const param : use.params)
        numbers[param] = number;
      if (gathers) blocks_[static_cast<std::size_t>(use.block)].gathers_tiles = true;
    }
  }
  for (const auto& [param, form] : tiled_) {
    std::vector<std::size_t> of_tile;
    for (const nn::WeightTile& tile : form->tiles())
      of_tile.push_back(numbers.at(tile.param.get()));
    form->bind(
        [gather = tile_gather_.get(), of_tile](std::size_t tile) {
          gather->fetch(of_tile[tile], of_tile[(tile + 1) % of_tile.size()]);
        },
        [gather = tile_gather_.get(), of_tile](std::size_t tile) {
          gather->release(of_tile[tile]);
        });
  }
}

void ModelInstance::group(comm::World& world, const ModelInstance* lender) {
  std::vector<BlockParams> blocks;
  for (const Entry& entry : blocks_) {
    BlockParams block{entry.name, {}};
    for (const auto& param : entry.params)
      block.params.push_back(param->shared_info());
    blocks.push_back(std::move(block));
  }
  const FlatPlan plan = plan_flat_groups(blocks, options_);
  for (const auto& [g, param] : plan.order) {
    const FlatGroupPlan& group = plan.groups[static_cast<std::size_t>(g)];
    places_.push_back({group.params[static_cast<std::size_t>(param)],
                       layout_.stage_of_block(group.uses.front().block),
                       group.uses.back().block,
                       group.uses.size() > 1});
  }
  std::vector<int> kept;
  for (const FlatGroupPlan& group : plan.groups)
    kept.push_back(keep(group, world, lent_by(lender, group)));
  for (const auto& [g, param] : plan.order) {
    const int here = kept[static_cast<std::size_t>(g)];
    if (here >= 0) order_.emplace_back(here, param);
  }
}

/// Returns the lender's buffer of the same frozen parameters; nullptr if there is none.
const FlatGroup* ModelInstance::lent_by(const ModelInstance* lender,
                                        const FlatGroupPlan& plan) const {
  if (lender == nullptr || plan.trainable || plan.packed()) return nullptr;
  const auto lends = [](const FlatGroup& group) {
    return group.weights->packed() == nullptr && group.weights->resting() == nullptr;
  };
  const auto same = [](const FlatParam& param, const std::shared_ptr<const ParamInfo>& info) {
    return param.info->name == info->name && param.info->shape == info->shape &&
           param.info->held() == info->held();
  };
  for (const FlatGroup& group : lender->groups_) {
    if (!group.trainable && lends(group) && group.weights->dtype() == options_.working &&
        std::ranges::equal(group.layout.params(), plan.params, same))
      return &group;
  }
  return nullptr;
}

/// Adds the group if this stage uses it; returns its index, or -1. `lent`: the buffer of another
/// model that it reads; nullptr: it has its own.
int ModelInstance::keep(const FlatGroupPlan& plan, comm::World& world, const FlatGroup* lent) {
  std::vector<int> stages;
  std::vector<BlockUse> here;
  const auto index = static_cast<int>(groups_.size());
  for (const FlatGroupPlan::BlockUse& use : plan.uses) {
    stages.push_back(layout_.stage_of_block(use.block));
    if (stages.back() != stage_) continue;
    Entry& entry = blocks_[static_cast<std::size_t>(use.block)];
    entry.groups.push_back(index);
    BlockUse kept{use.block, {}};
    for (const std::size_t p : use.params)
      kept.params.push_back(entry.params[p].get());
    here.push_back(std::move(kept));
  }
  if (here.empty()) return -1;
  const GroupRanks ranks = ranks_of(world, plan.axes);
  FlatLayout layout = plan.layout(ranks.fold->size());
  const WeightStrategy& strategy =
      weight_strategies().get(plan.strategy(options_, ranks.fold->size()));
  std::unique_ptr<WorkingWeights> weights = lent != nullptr
                                                ? lent->weights->borrowed()
                                                : strategy.make({world,
                                                                 ranks,
                                                                 layout,
                                                                 options_.working,
                                                                 options_.packing,
                                                                 {resting_, groups_.size()},
                                                                 uploads_});
  const bool counted = stages.front() == stage_;
  groups_.push_back({std::move(layout),
                     plan.trainable,
                     plan.axes,
                     ranks,
                     std::move(here),
                     std::move(weights),
                     std::move(stages),
                     counted,
                     lent != nullptr,
                     plan.tile});
  return index;
}

void ModelInstance::attach() {
  for (FlatGroup& group : groups_) {
    for (const BlockUse& use : group.uses) {
      for (std::size_t i = 0; i < use.params.size(); ++i) {
        at::Tensor view = view_of(group.weights->whole(), group.layout.params()[i]).detach();
        view.set_requires_grad(group.trainable);
        use.params[i]->attach(std::move(view));
      }
    }
  }
}

std::vector<int> ModelInstance::freeze_sets(const std::vector<bool>& frozen) {
  TESSERA_ASSERT(options_.apart);
  const auto trained = [&](const ParamInfo& info) {
    const int set = options_.apart(info.name);
    return set == 0 ? info.trainable : !frozen.at(static_cast<std::size_t>(set) - 1);
  };
  const auto changed_info = [&](std::shared_ptr<const ParamInfo>& info) {
    if (info->trainable == trained(*info)) return;
    ParamInfo changed = *info;
    changed.trainable = !changed.trainable;
    info = std::make_shared<const ParamInfo>(std::move(changed));
  };
  for (ParamPlace& place : places_)
    changed_info(place.info);
  std::vector<int> out;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    FlatGroup& group = groups_[g];
    const bool now = trained(*group.layout.params().front().info);
    if (group.trainable == now) continue;
    group.trainable = now;
    for (std::size_t i = 0; i < group.layout.params().size(); ++i) {
      std::shared_ptr<const ParamInfo> info = group.layout.params()[i].info;
      changed_info(info);
      group.layout.replace_info(i, std::move(info));
    }
    for (const BlockUse& use : group.uses) {
      for (Param* param : use.params)
        param->set_trainable(now);
    }
    out.push_back(static_cast<int>(g));
  }
  return out;
}

namespace {

/// The largest magnitudes of the whole rows of which this rank has columns; undefined if it has
/// whole rows.
at::Tensor largest_of_whole_rows(const at::Tensor& rows,
                                 const ParamInfo& info,
                                 const nn::TensorParallel* tensor) {
  if (tensor == nullptr || rows.size(1) == info.shape.back()) return {};
  const at::Tensor largest = ops::largest_of_rows(rows);
  const comm::WorkPtr work =
      tensor->world->transport().all_reduce(*tensor->group,
                                            span_of(largest),
                                            comm::Op::Max,
                                            TESSERA_HERE("scales of the rows of " + info.name));
  work->wait();
  work->wait_reusable();
  return largest;
}

}  // namespace

void ModelInstance::to_int8() {
  TESSERA_ASSERT(!tensor_ || !tensor_->on_grid());
  const c10::NoGradGuard no_grad;
  const memory::ScopedTag tag(memory::Tag::Parameters);
  for (FlatGroup& group : groups_) {
    for (std::size_t i = 0; i < group.layout.params().size(); ++i) {
      const Param& first = *group.uses.front().params[i];
      const at::Tensor& weight = first.tensor();
      // The matrices of adapters are small, and rounding them would save little.
      const bool is_matrix = decays(first.info()) && !nn::is_low_rank(first.info());
      ops::Int8Rows narrow;
      if (is_matrix) {
        const at::Tensor rows = weight.reshape({-1, weight.size(-1)});
        narrow = ops::to_int8(rows, largest_of_whole_rows(rows, first.info(), tensor_parallel()));
      }
      const at::Tensor copy =
          is_matrix ? narrow.rows_OI.view(weight.sizes()) : weight.to(at::kBFloat16).clone();
      for (const BlockUse& use : group.uses)
        use.params[i]->attach_int8(copy, narrow.scales_O);
    }
    group.weights->forget();
  }
}

void ModelInstance::forget_other_stages() {
  for (int b = 0; b < num_blocks(); ++b) {
    if (layout_.stage_of_block(b) != stage_) blocks_[static_cast<std::size_t>(b)].params.clear();
  }
}

const GroupRanks& ModelInstance::only_fold(const std::string& what) const {
  const auto other = std::find_if(groups_.begin(), groups_.end(), [&](const FlatGroup& group) {
    return group.ranks.fold != dense_ranks_.fold || group.ranks.slices > 1;
  });
  TESSERA_REQUIRE(other == groups_.end(),
                  Unsupported,
                  fmt::format("{} needs gradients that are all summed over the same ranks, and "
                              "those of {} are summed over {} ranks, the others over {}",
                              what,
                              other->layout.name(),
                              other->ranks.fold->size(),
                              dense_ranks_.fold->size()),
                  "hold all experts on every rank: remove parallel.expert");
  return dense_ranks_;
}

std::int64_t ModelInstance::num_parameters() const {
  std::int64_t total = 0;
  for (const ParamPlace& place : places_)
    total += is_tile(*place.info) ? place.info->local_numel() : place.info->numel();
  return total;
}

}  // namespace tessera::parallel
