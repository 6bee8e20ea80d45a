// SPDX-License-Identifier: Apache-2.0
// Expert parallelism: the ranks among which the experts of a layer are divided.
#pragma once

#include "tessera/mesh/expert_fold.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/tensor/param.h"

namespace tessera::comm {
class World;
struct Group;
}  // namespace tessera::comm

namespace tessera::nn {

/// The ranks that together hold the experts of a layer, in the order of the experts: the first ones
/// hold one more if the division leaves a remainder. Both pointers must outlive this.
struct ExpertParallel {
  comm::World* world = nullptr;
  const comm::Group* group = nullptr;  ///< over fold.ep
  mesh::ExpertFold fold;
};

/// The split of a stacked parameter: its matrices over `fold.ep`, and the dims of each by the table
/// of mode 1d over `fold.etp`.
mesh::ShardSpec expert_spec_of(const ParamInfo& info, const mesh::ExpertFold& fold);

}  // namespace tessera::nn
