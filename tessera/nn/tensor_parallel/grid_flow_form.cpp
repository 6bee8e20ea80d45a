// SPDX-License-Identifier: Apache-2.0
// The flow of a grid of ranks: samples and channels are split.
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/tensor_parallel/grid.h"

namespace tessera::nn {
namespace {

class GridFlowForm final : public FlowForm {
 public:
  [[nodiscard]] bool splits_samples() const override { return true; }
  [[nodiscard]] bool is_partial(const StepContext& /*context*/) const override { return true; }
  [[nodiscard]] OwnSamples own_samples(std::int64_t batch,
                                       FlowPlace place,
                                       const StepContext& context) const override {
    const TensorMode mode = context.tensor->mode;
    const grid::Range own =
        grid::own_samples(batch,
                          place == FlowPlace::Between ? grid::stream(mode) : grid::inner(mode),
                          *context.tensor);
    return {own.begin, own.count};
  }
  [[nodiscard]] at::Tensor gather(const at::Tensor& x, StepContext& context) const override {
    return grid::gather_flow(x, context);
  }
  [[nodiscard]] at::Tensor take(const at::Tensor& x, StepContext& context) const override {
    return grid::take_flow(x, context);
  }
  void cut_dropout(ops::DropoutKey& key, const StepContext& context) const override {
    grid::cut_dropout(key, context);
  }
  void cut_inner_dropout(ops::DropoutKey& key, const StepContext& context) const override {
    TESSERA_ASSERT(context.batch != nullptr);
    const std::vector<std::int64_t>& ids = context.batch->sample_ids;
    const OwnSamples own = own_samples(std::ssize(ids), FlowPlace::Inside, context);
    key.sample_ids = {ids.begin() + own.begin, ids.begin() + own.begin + own.count};
  }
  std::int64_t cut_attention(ops::AttentionArgs& args, const StepContext& context) const override {
    return grid::cut_attention(args, context);
  }
  [[nodiscard]] Normed layer_norm(const at::Tensor& x_BTC,
                                  const at::Tensor& branch_BTC,
                                  const ops::DropoutKey& key,
                                  const Param& weight,
                                  const Param* bias,
                                  double eps,
                                  StepContext& context) const override {
    const at::Tensor sum = added(x_BTC, branch_BTC, key);
    return {sum, grid::layer_norm(sum, weight, bias, eps, context)};
  }
  [[nodiscard]] Normed rms_norm(const at::Tensor& x_BTC,
                                const at::Tensor& branch_BTC,
                                const ops::DropoutKey& key,
                                const Param& weight,
                                double eps,
                                StepContext& context,
                                double offset) const override {
    const at::Tensor sum = added(x_BTC, branch_BTC, key);
    return {sum, grid::rms_norm(sum, weight, eps, offset, context)};
  }
  [[nodiscard]] VocabLoss vocab_loss(const at::Tensor& x_BTC,
                                     const Param& weight_VC,
                                     const Param* bias_V,
                                     const at::Tensor& labels_BT,
                                     double label_smoothing,
                                     StepContext& context,
                                     double softcap) const override {
    return grid::vocab_loss(x_BTC, weight_VC, bias_V, labels_BT, label_smoothing, context, softcap);
  }
  [[nodiscard]] OwnColumns own_columns(const ParamInfo& weight_VC,
                                       const StepContext& context) const override {
    const comm::Group& ranks = grid::ranks_inside(context);
    return {
        true,
        mesh::even_cut(weight_VC.shape.front(), weight_VC.unit, ranks.size(), ranks.index).first};
  }
  [[nodiscard]] at::Tensor all_columns(const at::Tensor& logits_NV,
                                       const Param& weight_VC,
                                       StepContext& context) const override {
    return grid::all_columns(logits_NV, weight_VC.info(), context);
  }
  [[nodiscard]] const WeightForm& weight_form(const ParamInfo& weight) const override {
    return weight.cut() ? grid_form() : whole_on_grid_form();
  }
  /// A bias that all ranks hold whole has the gradient of all samples on each of them.
  void bias_grad(const at::Tensor& dy, const Param& bias, StepContext& context) const override {
    if (!bias.info().cut()) return line_flow_form().bias_grad(dy, bias, context);
    grid::bias_grad(grid::by_samples(dy), bias, 1.0F, context);
  }
  [[nodiscard]] at::Tensor sum_over_samples(const at::Tensor& mine,
                                            const ParamInfo& info,
                                            StepContext& context,
                                            const char* what) const override {
    return grid::sum_over_samples(mine, info, context, what);
  }

 private:
  /// The sum as a step of its own: the ranks exchange sums between it and the norm.
  static at::Tensor added(const at::Tensor& x,
                          const at::Tensor& branch,
                          const ops::DropoutKey& key) {
    return branch.defined() ? nn::add_dropout(x, branch, key) : x;
  }
};

}  // namespace

const FlowForm& grid_flow_form() {
  static const GridFlowForm form;
  return form;
}

}  // namespace tessera::nn
