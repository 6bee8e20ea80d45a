// SPDX-License-Identifier: Apache-2.0
// What stages of a pipeline hand to each other. Shapes are known on both sides beforehand: they
// come from running the blocks before on the meta device, once for every shape of a batch. Those
// blocks are made one at a time for it, without storage for their parameters, and let go.
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

/// Sends are posted and never wait. Receives are posted before what they bring is needed, and
/// waited for then; those of one part and kind in the order in which it is sent. Parts are those of
/// StageLayout. Messages carry a flow's tensors one after the other. Threads: the rank's own.
class StageLink {
 public:
  /// A flow, or gradients, that a receive was posted for. Destroyed without being taken only while
  /// an exception is under way.
  class Incoming {
   private:
    friend class StageLink;
    struct Message {
      at::Tensor whole, share;  ///< the share: undefined where the whole travels
      comm::WorkPtr work;       ///< nullptr: there is nothing to travel
    };
    std::string what_;
    nn::Flow flow_;                  ///< without its tensors; gradients: `diff`
    std::vector<Message> messages_;  ///< of `diff`, then of `fixed`
  };

  /// `world` must outlive this. `working`: of the weights, which types of flows follow. `tensor`:
  /// ModelInstance::tensor_parallel(). `scatter_gather`: where all tensor-parallel ranks have the
  /// same flow, each sends its share, and those of the next stage gather it between them. Source:
  /// Narayanan et al. 2021, section 4.1.
  StageLink(comm::World& world,
            nn::Model model,
            StageLayout layout,
            DType working,
            const nn::TensorParallel* tensor = nullptr,
            bool scatter_gather = false);
  ~StageLink();

  /// The flow that `part` begins with.
  void send_flow(int part, const nn::Flow& flow);
  Incoming post_flow(int part, const nn::Batch& batch, const nn::StepContext& context);
  nn::Flow take_flow(Incoming incoming);
  /// The gradients of the differentiable tensors that `part` begins with; `like` has their shapes.
  /// What is undefined is sent as zeros.
  void send_gradient(int part,
                     const std::vector<at::Tensor>& gradients,
                     const std::vector<at::Tensor>& like);
  Incoming post_gradient(int part, const std::vector<at::Tensor>& like);
  std::vector<at::Tensor> take_gradient(Incoming incoming);
  /// A tensor of `numel` fp32 elements that the stage with the objective has, on all stages.
  at::Tensor from_objective(const at::Tensor& mine, std::int64_t numel);

 private:
  const nn::Flow& shape_of(int part, const nn::Batch& batch, const nn::StepContext& context);
  std::vector<nn::Flow> run_on_meta(const nn::Batch& batch, const nn::StepContext& of_run);
  nn::Flow probe(const nn::BlockSpec& spec,
                 nn::Flow flow,
                 const nn::Batch& meta,
                 const nn::StepContext& of_run);
  void send(int rank, int channel, const at::Tensor& tensor, const std::string& what);
  void post(Incoming& incoming, int rank, int channel);
  [[nodiscard]] int rank_of_part(int part) const;
  [[nodiscard]] int last_received() const;
  /// Into how many shares a tensor is cut on its way.
  [[nodiscard]] int shares_of(const at::Tensor& tensor) const;

  comm::World& world_;
  nn::Model model_;
  StageLayout layout_;
  DType working_;
  std::optional<nn::TensorParallel> tensor_;
  bool scatter_gather_;
  std::map<std::string, std::vector<nn::Flow>>
      known_;  ///< by the batch: what every part begins with
};

}  // namespace tessera::parallel
