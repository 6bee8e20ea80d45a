// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/state_beginnings.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/parallel/param_facts.h"

namespace tessera::parallel {
namespace {

checkpoint::PieceBytes beginning_piece(std::string_view parameter, double& updates) {
  const Shape one = {1};
  return {beginning_of(parameter),
          DType::F64,
          one,
          {mesh::whole(one), 0, 1},
          std::as_writable_bytes(std::span(&updates, 1))};
}

}  // namespace

std::string beginning_of(std::string_view parameter) {
  return fmt::format("optimizer.began.{}", parameter);
}

std::int64_t updates_in(const checkpoint::Meta& meta) {
  const json::Value* skipped = meta.extra.find("skipped");
  return meta.step - (skipped == nullptr ? 0 : skipped->as_integer().value_or(0));
}

std::int64_t updates_before(const checkpoint::Checkpoint& checkpoint, std::string_view parameter) {
  if (!checkpoint.has(beginning_of(parameter))) return 0;
  double updates = 0;
  const checkpoint::PieceBytes piece = beginning_piece(parameter, updates);
  checkpoint.load({&piece, 1});
  const std::int64_t made = updates_in(checkpoint.meta());
  TESSERA_REQUIRE(
      updates >= 0 && updates <= static_cast<double>(made) && std::floor(updates) == updates,
      Format,
      fmt::format("{}: {} is {}, and {} updates were made",
                  checkpoint.folder().string(),
                  piece.name,
                  updates,
                  made),
      "the checkpoint is damaged: take another");
  return static_cast<std::int64_t>(updates);
}

void StateBeginnings::load(ModelInstance& model,
                           const optim::Rule& rule,
                           const checkpoint::Checkpoint& checkpoint) {
  updates_.clear();
  if (checkpoint.save_id() != 0) return;
  for (const FlatGroup& group : model.groups()) {
    for (const FlatParam& param : group.layout.params()) {
      const std::string& name = param.info->name;
      const auto states = rule.state(facts_of(*param.info));
      if (!group.trainable || states.empty()) continue;
      const bool anew = std::none_of(states.begin(), states.end(), [&](const auto& state) {
        return checkpoint.has(fmt::format("optimizer.{}.{}", state.name, name));
      });
      const std::int64_t updates =
          anew ? updates_in(checkpoint.meta()) : updates_before(checkpoint, name);
      if (updates > 0) updates_[name] = static_cast<double>(updates);
    }
  }
}

void StateBeginnings::begin(const std::string& parameter, std::int64_t updates) {
  updates_.erase(parameter);
  if (updates > 0) updates_[parameter] = static_cast<double>(updates);
}

void StateBeginnings::add_pieces(ModelInstance& model, std::vector<checkpoint::PieceBytes>& out) {
  for (const FlatGroup& group : model.groups()) {
    for (const FlatParam& param : group.layout.params()) {
      // The tiles of a parameter begin together.
      if (group.tile && param.info->box.begin.front() > 0) continue;
      const auto found = updates_.find(param.info->name);
      if (group.counted && found != updates_.end())
        out.push_back(beginning_piece(found->first, found->second));
    }
  }
}

optim::UpdateScalars StateBeginnings::scalars_of(const std::string& parameter,
                                                 optim::UpdateScalars scalars) const {
  const auto found = updates_.find(parameter);
  if (found != updates_.end()) scalars.step -= static_cast<std::int64_t>(found->second);
  return scalars;
}

}  // namespace tessera::parallel
