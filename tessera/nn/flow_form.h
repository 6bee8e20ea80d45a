// SPDX-License-Identifier: Apache-2.0
// The form in which ranks that share layers hold the values between these layers, the flow: all
// samples and channels of a value, or some of them. Each way is a class in its own file; layers ask
// flow_form() and do not branch themselves. Which tokens of its samples a rank has is another
// question: StepContext::cuts_tokens() and shares_tokens(). Legend: B samples, T tokens, C
// channels, N rows, V vocabulary.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/functional.h"
#include "tessera/nn/step_context.h"
#include "tessera/nn/weight_form.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/dropout.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// Between layers, or inside a pair of layers: heads, features of the MLP, the logits.
enum class FlowPlace : std::uint8_t { Between, Inside };

/// Indices [begin, begin + count) of the samples of a batch.
struct OwnSamples {
  std::int64_t begin = 0, count = 0;
};

/// The columns of the vocabulary that a rank has.
struct OwnColumns {
  bool cut = false;  ///< whether other ranks have other columns
  std::int64_t first = 0;
};

/// A strategy without state; shared by all threads.
class FlowForm {
 public:
  virtual ~FlowForm() = default;
  /// True if a rank has some of the samples and channels of the flow, and the batch has all
  /// samples.
  [[nodiscard]] virtual bool splits_samples() const = 0;
  /// True if the flows of the ranks that share a layer differ: a sum over the flow of a rank is
  /// then a part of it.
  [[nodiscard]] virtual bool is_partial(const StepContext& context) const = 0;
  /// This rank's samples, of `batch`.
  [[nodiscard]] virtual OwnSamples own_samples(std::int64_t batch,
                                               FlowPlace place,
                                               const StepContext& context) const = 0;

  /// All samples and channels of x [B, ..., C] on every rank; its gradient is this rank's part. The
  /// inverse is take().
  [[nodiscard]] virtual at::Tensor gather(const at::Tensor& x, StepContext& context) const = 0;
  [[nodiscard]] virtual at::Tensor take(const at::Tensor& x, StepContext& context) const = 0;

  /// Restricts a dropout mask of all samples to the values between layers that this rank has.
  virtual void cut_dropout(ops::DropoutKey& key, const StepContext& context) const = 0;
  /// Restricts one to this rank's samples inside a pair of layers.
  virtual void cut_inner_dropout(ops::DropoutKey& key, const StepContext& context) const = 0;
  /// Restricts attention masks to this rank's samples. Returns the first one's index.
  virtual std::int64_t cut_attention(ops::AttentionArgs& args,
                                     const StepContext& context) const = 0;

  /// residual_layer_norm() and residual_rms_norm() of functional.h.
  [[nodiscard]] virtual Normed layer_norm(const at::Tensor& x_BTC,
                                          const at::Tensor& branch_BTC,
                                          const ops::DropoutKey& key,
                                          const Param& weight,
                                          const Param* bias,
                                          double eps,
                                          StepContext& context) const = 0;
  [[nodiscard]] virtual Normed rms_norm(const at::Tensor& x_BTC,
                                        const at::Tensor& branch_BTC,
                                        const ops::DropoutKey& key,
                                        const Param& weight,
                                        double eps,
                                        StepContext& context,
                                        double offset) const = 0;
  /// vocab_loss() of functional.h.
  [[nodiscard]] virtual VocabLoss vocab_loss(const at::Tensor& x_BTC,
                                             const Param& weight_VC,
                                             const Param* bias_V,
                                             const at::Tensor& labels_BT,
                                             double label_smoothing,
                                             StepContext& context,
                                             double softcap) const = 0;
  /// The columns of the logits that this rank computes with its part of the weight, and all columns
  /// for the rows of logits_NV, which are these. Without a gradient.
  [[nodiscard]] virtual OwnColumns own_columns(const ParamInfo& weight_VC,
                                               const StepContext& context) const = 0;
  [[nodiscard]] virtual at::Tensor all_columns(const at::Tensor& logits_NV,
                                               const Param& weight_VC,
                                               StepContext& context) const = 0;

  /// weight_form() of weight_form.h.
  [[nodiscard]] virtual const WeightForm& weight_form(const ParamInfo& weight) const = 0;
  /// Writes the gradient of a bias that was added to the values whose gradient is `dy`.
  virtual void bias_grad(const at::Tensor& dy, const Param& bias, StepContext& context) const = 0;
  /// The sum of `mine`, a gradient of this rank's features of a parameter, over the ranks that have
  /// the same features of other samples.
  [[nodiscard]] virtual at::Tensor sum_over_samples(const at::Tensor& mine,
                                                    const ParamInfo& info,
                                                    StepContext& context,
                                                    const char* what) const = 0;
};

/// The form of the flow in the layout of `context`.
const FlowForm& flow_form(const StepContext& context);
/// One rank, or the ranks of mode 1d: each has all samples and channels.
const FlowForm& line_flow_form();
/// Modes 2d, 2.5d and 3d: ranks of a grid have some samples and some channels.
const FlowForm& grid_flow_form();

}  // namespace tessera::nn
