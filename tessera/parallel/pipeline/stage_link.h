// SPDX-License-Identifier: Apache-2.0
// Messages between the stages of a pipeline. Both sides know the shapes beforehand, from running
// the preceding blocks on the meta device, once for every shape of a batch. For this, those blocks
// are made one at a time, without storage for their parameters, and destroyed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/world.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/parallel/pipeline/stage_layout.h"

namespace tessera::parallel {

/// Sends are posted and never wait. Receives are posted before their data are needed and waited for
/// then; receives of one part and kind are posted in the order of the sends. Parts are those of
/// StageLayout. Messages contain a flow's tensors one after the other. Used only on the rank's own
/// thread.
class StageLink {
 public:
  /// A flow, or gradients, for which a receive was posted. It is destroyed without being taken only
  /// while an exception unwinds.
  class Incoming {
   private:
    friend class StageLink;
    struct Message {
      at::Tensor whole, share;  ///< the share: undefined if the whole tensor is sent
      comm::WorkPtr work;       ///< nullptr: nothing is sent
    };
    std::string what_;
    nn::Flow flow_;                  ///< without its tensors; for gradients: `diff`
    std::vector<Message> messages_;  ///< for `diff`, then for `fixed`
  };

  /// `world` must outlive this. `working`: the dtype of the weights, from which the dtypes of flows
  /// follow. `tensor`: ModelInstance::tensor_parallel(). `scatter_gather`: if all tensor-parallel
  /// ranks have the same flow, each sends a share, and the ranks of the next stage gather the
  /// shares. Source: Narayanan et al. 2021, section 4.1.
  StageLink(comm::World& world,
            nn::Model model,
            StageLayout layout,
            DType working,
            const nn::TensorParallel* tensor = nullptr,
            bool scatter_gather = false);
  ~StageLink();

  /// Sends the flow with which `part` begins.
  void send_flow(int part, const nn::Flow& flow);
  Incoming post_flow(int part, const nn::Batch& batch, const nn::StepContext& context);
  nn::Flow take_flow(Incoming incoming);
  /// Sends the gradients of the differentiable tensors with which `part` begins; `like` has their
  /// shapes. Undefined gradients are sent as zeros.
  void send_gradient(int part,
                     const std::vector<at::Tensor>& gradients,
                     const std::vector<at::Tensor>& like);
  Incoming post_gradient(int part, const std::vector<at::Tensor>& like);
  std::vector<at::Tensor> take_gradient(Incoming incoming);
  /// Returns on all stages a tensor of `numel` fp32 elements that the stage with the objective has.
  at::Tensor from_objective(const at::Tensor& mine, std::int64_t numel);

 private:
  const nn::Flow& shape_of(int part, const nn::Batch& batch, const nn::StepContext& context);
  std::vector<nn::Flow> run_on_meta(const nn::Batch& batch, const nn::StepContext& of_run);
  nn::Flow probe(const nn::BlockSpec& spec,
                 nn::Flow flow,
                 const nn::Batch& meta,
                 const nn::StepContext& of_run,
                 comm::World& shapes);
  void send(int rank, int channel, const at::Tensor& tensor, const std::string& what);
  void post(Incoming& incoming, int rank, int channel);
  [[nodiscard]] int rank_of_part(int part) const;
  void open_channels();
  [[nodiscard]] int last_received() const;
  /// The number of shares in which a tensor is sent.
  [[nodiscard]] int shares_of(const at::Tensor& tensor) const;

  comm::World& world_;
  nn::Model model_;
  StageLayout layout_;
  DType working_;
  std::optional<nn::TensorParallel> tensor_;
  bool scatter_gather_;
  std::map<std::string, std::vector<nn::Flow>>
      known_;  ///< by the batch's shapes: the flow with which every part begins
};

}  // namespace tessera::parallel
