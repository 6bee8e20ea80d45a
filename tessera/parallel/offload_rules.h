// SPDX-License-Identifier: Apache-2.0
// The rules about what rests outside of working memory: masters and states, weights, activations.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"
#include "tessera/parallel/zero_options.h"

namespace tessera::parallel {

struct ActivationOffload;
struct StateOffload;
struct WeightOffload;

/// The parts of a configuration on which offload depends.
struct OffloadChoice {
  const ZeroOptions& zero;
  const RecomputeOptions& recompute;
  const ParallelOptions& parallel;
  const optim::OptimizerOptions& optimizer;
  bool bf16_masters;          ///< bf16.bf16_master_weights_and_grads
  bool once;                  ///< gradient_reduction "once"
  const std::string& device;  ///< as the user names it (memory::device_kind())
  /// True if ranks compute on a device other than the CPU; false for an unknown name, which the
  /// rules of run.device report.
  [[nodiscard]] bool on_device() const;
};

/// Returns where weights rest by these keys, whose nvme_path is not empty; its folder is absolute.
WeightOffload weight_offload_of(const ParamOffloadKeys& keys);

/// The disks on which masters and states, working weights, and inputs of recomputed blocks rest.
using RestingPlaces = std::tuple<std::optional<StateOffload>,
                                 std::optional<WeightOffload>,
                                 std::optional<ActivationOffload>>;
/// Returns them; makes the paths of the folders absolute, so that they are found from any folder.
RestingPlaces complete_offload(ZeroOptions& zero, RecomputeOptions& recompute);

/// The parts of a training that the host of a device keeps in its memory. On the CPU the keys
/// change nothing, because all parts are in that memory.
struct HostPlaces {
  bool states = false;   ///< StatePlace::on_host
  bool weights = false;  ///< Layout::weights_on_host
  /// Number of inputs of recomputed blocks that are on their way there at a time.
  std::optional<int> activations;
};
HostPlaces host_places(const OffloadChoice& choice);

/// The rules about what rests on a disk. Problems have the place of the key to change.
void check_offload(const OffloadChoice& choice,
                   config::Problems& problems,
                   const config::Origins& origins);
/// The rules about what rests outside of the memory of a device on which ranks compute.
void check_offload_on_device(const OffloadChoice& choice,
                             config::Problems& problems,
                             const config::Origins& origins);
/// Notes about keys of offload that have no effect.
std::vector<std::string> offload_notes(const OffloadChoice& choice);

}  // namespace tessera::parallel
