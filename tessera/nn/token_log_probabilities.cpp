// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/token_log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {
namespace {

using namespace detail;

// Legend: N tokens that have a label, R ranks that each have some columns of the vocabulary.

/// Applies `function` to each element. libtorch's own functions give an element other bits
/// depending on its place in the tensor.
template <class Function>
at::Tensor of_each(const at::Tensor& x, Function function) {
  if (x.is_meta()) return at::empty_like(x);
  at::Tensor out = x.to(at::kCPU).contiguous().clone();
  auto* const values = out.data_ptr<double>();
  std::transform(values, values + out.numel(), values, function);
  return out.to(x.device());
}
at::Tensor log_of(const at::Tensor& x) {
  return of_each(x, [](double value) { return std::log(value); });
}
at::Tensor exp_of(const at::Tensor& x) {
  return of_each(x, [](double value) { return std::exp(value); });
}

/// The facts of logits that ranks have columns of, after exp_rows_().
struct Columns {
  at::Tensor largest_RN, sums_RN, labels_RN;  ///< labels: the label's logit, 0 on other ranks
};
struct Whole {
  at::Tensor log_p_N, largest_N, sum_N;
  at::Tensor scale_RN;  ///< e^(a rank's largest logit - the largest one)
};
Whole whole_of(const Columns& of) {
  Whole out;
  out.largest_N = of.largest_RN.amax(0);
  out.scale_RN = exp_of(of.largest_RN - out.largest_N);
  out.sum_N = (of.sums_RN * out.scale_RN).sum(0);
  out.log_p_N = of.labels_RN.sum(0) - out.largest_N - log_of(out.sum_N);
  return out;
}

/// The columns of the vocabulary that a rank has.
struct Share {
  bool cut = false;  ///< whether other ranks have other columns
  std::int64_t first = 0, count = 0;
};

/// The logits of some tokens, or this rank's columns of them.
class Distributions {
 public:
  /// `gathered`: the logits have all columns although the weight of this rank has the share alone.
  Distributions(at::Tensor logits_NV, at::Tensor labels_N, const Share& share, bool gathered)
      : logits_(std::move(logits_NV)),
        labels_(std::move(labels_N)),
        share_(share),
        gathered_(gathered),
        cut_(share.cut && !gathered),
        first_(cut_ ? share.first : 0) {}

  /// Computes the requested quantities of each distribution, fp64 [N]; quantities that are not
  /// requested stay undefined. Overwrites the logits with e^(logit - largest).
  TokenLogProbabilities measure(const Distribution& how, StepContext& context) {
    const at::Tensor own_N = own();
    const auto fp64 = logits_.options().dtype(at::kDouble);
    // For this rank's columns: the largest logit, the sum of the overwritten logits, the label's
    // logit if this rank has it, the sum of squares, and the sum of e log e.
    const at::Tensor out_5N = at::zeros({5, logits_.size(0)}, fp64);
    out_5N[2].copy_(at::where(own_N, label_elements(), at::zeros({}, logits_.options())));
    ops::exp_rows_(logits_, out_5N[0], out_5N[1]);
    if (how.squares) out_5N[3].copy_(logits_.to(at::kDouble).square().sum(1));
    if (how.entropies) out_5N[4].copy_((logits_ * logs()).sum(1, false, at::kDouble));
    const at::Tensor all_R5N =
        cut_ ? one_d::all_of(out_5N, grid::ranks_inside(context), "log-probabilities", context)
             : out_5N.unsqueeze(0);
    const Whole whole =
        whole_of({all_R5N.select(1, 0), all_R5N.select(1, 1), all_R5N.select(1, 2)});
    const at::Tensor log_sum_N = whole.sum_N.log();
    factor_ = ((out_5N[0] - whole.largest_N).exp() / whole.sum_N).to(at::kFloat);
    TokenLogProbabilities out{whole.log_p_N, {}, {}};
    if (how.squares) {
      out.log_sums_of_squares_BT =
          (all_R5N.select(1, 3) * whole.scale_RN.square()).sum(0).log() - 2 * log_sum_N;
    }
    if (how.entropies) {
      // A rank's logarithms are relative to its own largest logit.
      const at::Tensor shifts_RN = all_R5N.select(1, 0) - whole.largest_N;
      const at::Tensor sums_N =
          (whole.scale_RN * (all_R5N.select(1, 4) + all_R5N.select(1, 1) * shifts_RN)).sum(0);
      out.entropies_BT = log_sum_N - sums_N / whole.sum_N;
      entropy_ = out.entropies_BT.to(at::kFloat);
      shift_ = (out_5N[0] - whole.largest_N - log_sum_N).to(at::kFloat);
    }
    return out;
  }

  /// Overwrites the logits with the gradient of sum(incoming * log-probabilities + of_entropies *
  /// entropies); the latter may be undefined. Returns the columns of this rank's share. Call once,
  /// after measure().
  at::Tensor gradient(const at::Tensor& incoming_N, const at::Tensor& of_entropies_N) {
    const at::Tensor weights_N = incoming_N.to(at::kFloat);
    if (of_entropies_N.defined()) {
      // d entropy / d logit = -p (log p + entropy)
      at::Tensor slope_NV = logs();
      slope_NV.add_((shift_ + entropy_).unsqueeze(1));
      slope_NV.mul_(of_entropies_N.to(at::kFloat).unsqueeze(1)).add_(weights_N.unsqueeze(1));
      logits_.mul_(slope_NV.mul_(-factor_.unsqueeze(1)));
    } else {
      logits_.mul_((weights_N * -factor_).unsqueeze(1));
    }
    const at::Tensor own_N = own();
    logits_.scatter_add_(
        1,
        columns().unsqueeze(1),
        at::where(own_N, weights_N, at::zeros({}, weights_N.options())).unsqueeze(1));
    const at::Tensor out = std::exchange(logits_, {});
    return gathered_ ? out.narrow(1, share_.first, share_.count).contiguous() : out;
  }

 private:
  /// The logarithms of e^(logit - largest), finite where these are 0.
  [[nodiscard]] at::Tensor logs() const { return logits_.clamp_min(kLeast).log_(); }
  [[nodiscard]] at::Tensor own() const {
    const at::Tensor column_N = labels_ - first_;
    return column_N.ge(0).logical_and(column_N.lt(logits_.size(1)));
  }
  [[nodiscard]] at::Tensor columns() const {
    return (labels_ - first_).clamp(0, logits_.size(1) - 1);
  }
  [[nodiscard]] at::Tensor label_elements() const {
    return logits_.gather(1, columns().unsqueeze(1)).squeeze(1);
  }

  at::Tensor logits_, labels_;
  Share share_;
  bool gathered_ = false;
  bool cut_ = false;  ///< whether the logits are columns among those of other ranks
  std::int64_t first_ = 0;
  static constexpr double kLeast = 1e-38;  ///< times its logarithm it is nothing
  at::Tensor entropy_, shift_;             ///< shift: log p is log e^(logit - largest) plus this
  at::Tensor factor_;                      ///< converts e^(logit - largest) to a probability
};

/// The tokens that have a label, among the tokens of a tensor of labels, and their distributions.
class LabelledTokens {
 public:
  LabelledTokens() = default;
  explicit LabelledTokens(const at::Tensor& labels) : sizes_(labels.sizes().vec()) {
    const at::Tensor flat = labels.reshape({-1});
    // Meta tensors have no label values, so every token counts as labelled.
    rows_N_ = flat.is_meta() ? at::empty({flat.size(0)}, flat.options())
                             : flat.ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    labels_N_ = flat.is_meta() ? rows_N_ : flat.index_select(0, rows_N_);
  }

  [[nodiscard]] bool none() const { return rows_N_.size(0) == 0; }
  /// The rows of these tokens, of x [..., C] for all tokens.
  [[nodiscard]] at::Tensor of(const at::Tensor& x) const {
    return x.is_meta() ? rows(x) : rows(x).index_select(0, rows_N_);
  }
  /// The inverse of of(): 0 for all other tokens.
  [[nodiscard]] at::Tensor among_all(const at::Tensor& rows_NC,
                                     at::IntArrayRef sizes,
                                     at::ScalarType dtype) const {
    if (rows_NC.is_meta()) return rows_NC.to(dtype).view(sizes);
    const at::Tensor all = at::zeros(sizes, rows_NC.options().dtype(dtype));
    all.view({-1, sizes.back()}).index_copy_(0, rows_N_, rows_NC.to(dtype));
    return all;
  }

  /// Returns the log-probabilities, and the squares and entropies that `how` requests, in the shape
  /// of the labels. Overwrites `logits`, this rank's columns for these tokens by `weight`.
  variable_list measure(at::Tensor logits,
                        const Param& weight,
                        const Distribution& how,
                        StepContext& context) {
    slope_NV_ = ops::soft_cap_(logits, how.softcap, context.training());
    if (how.temperature != 1.0) logits.div_(how.temperature);
    const Share share = share_of(weight, logits.size(1), context);
    // A support is a fact of the whole row, and exactness needs generation's order of the sums.
    const bool gathered = share.cut && (!how.support.whole() || ops::batch_invariant());
    if (gathered) logits = flow_form(context).all_columns(logits, weight, context).contiguous();
    ops::keep_support_(logits, labels_N_, how.support);
    of_.emplace(logits, labels_N_, share, gathered);
    how_ = how;
    const TokenLogProbabilities made = of_->measure(how, context);
    variable_list out = {placed(made.values_BT)};
    if (how.squares) out.push_back(placed(made.log_sums_of_squares_BT));
    if (how.entropies) out.push_back(placed(made.entropies_BT));
    return out;
  }
  /// The results of measure() where no token has a label.
  [[nodiscard]] variable_list nothing(const Distribution& how,
                                      const at::TensorOptions& like) const {
    const std::size_t count = 1U + (how.squares ? 1U : 0U) + (how.entropies ? 1U : 0U);
    variable_list out(count);
    for (at::Tensor& one : out)
      one = at::zeros(sizes_, like.dtype(at::kDouble));
    return out;
  }

  /// The gradient of the logits of these tokens from those of the results. Call once, after
  /// measure().
  at::Tensor gradient(const variable_list& grads) {
    const auto of_labels = [&](const at::Tensor& grad) {
      if (!grad.defined()) return at::Tensor();
      return grad.is_meta() ? grad.reshape({-1}) : grad.reshape({-1}).index_select(0, rows_N_);
    };
    const at::Tensor incoming_N = of_labels(grads.front());
    at::Tensor dlogits = of_->gradient(
        incoming_N.defined() ? incoming_N
                             : at::zeros({rows_N_.size(0)}, rows_N_.options().dtype(at::kFloat)),
        how_.entropies ? of_labels(grads.back()) : at::Tensor());
    of_.reset();
    if (how_.temperature != 1.0) dlogits.div_(how_.temperature);
    if (slope_NV_.defined()) dlogits.mul_(std::exchange(slope_NV_, {}));
    return dlogits;
  }

 private:
  static Share share_of(const Param& weight, std::int64_t columns, const StepContext& context) {
    const OwnColumns own = flow_form(context).own_columns(weight.info(), context);
    return {own.cut, own.first, columns};
  }
  /// Values of these tokens, and 0 for the others.
  [[nodiscard]] at::Tensor placed(const at::Tensor& values_N) const {
    if (values_N.is_meta()) return values_N.view(sizes_);
    const at::Tensor out = at::zeros(sizes_, values_N.options());
    out.view({-1}).index_copy_(0, rows_N_, values_N);
    return out;
  }

  std::vector<std::int64_t> sizes_;
  at::Tensor rows_N_, labels_N_, slope_NV_;
  std::optional<Distributions> of_;
  Distribution how_;
};

/// Squares have no gradient.
void mark(AutogradContext* node, const variable_list& results, const Distribution& how) {
  if (how.squares && node != nullptr) node->mark_non_differentiable({results[1]});
}

struct LogProbabilitiesNode : torch::autograd::Function<LogProbabilitiesNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    Distribution how = {};
    LabelledTokens tokens = {};
    at::Tensor x_NC = {};
  };

  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const at::Tensor& labels,
                               Use use) {
    use.tokens = LabelledTokens(labels);
    variable_list results;
    if (use.tokens.none()) {
      results = use.tokens.nothing(use.how, x.options());
    } else {
      use.x_NC = use.tokens.of(x);
      results = use.tokens.measure(
          ops::linear(use.x_NC, matrix(weight), bias ? *bias : at::Tensor(), at::kFloat),
          *use.weight,
          use.how,
          *use.context);
    }
    save(node, {x, weight});
    mark(node, results, use.how);
    keep(node, std::move(use));
    return results;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& use = kept<Use>(node);
    if (use.tokens.none()) return {at::zeros_like(x), {}, {}, {}, {}};
    const at::Tensor dy = use.tokens.gradient(grads).to(x.scalar_type()), x_NC = use.x_NC;
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = use.tokens.among_all(
          ops::linear_input_grad(dy, matrix(weight)), x.sizes(), x.scalar_type());
    }
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy, x_NC, w = use.weight] {
        GradSink& sink = w->grad();
        ops::linear_weight_grad(dy, x_NC, matrix(sink.out()), sink.accumulate(), 1.0F);
        sink.written();
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, b = use.bias] {
        const at::Tensor db = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
        ops::linear_bias_grad(dy, db, /*accumulate=*/false);
        b->grad().write(db);
      });
    }
    return {dx, {}, {}, {}, {}};
  }
};

/// The log-probabilities of this rank's samples from its columns of their logits, on a grid of
/// ranks.
struct FromLogitsNode : torch::autograd::Function<FromLogitsNode> {
  struct Use {
    const Param* weight;
    StepContext* context;
    Distribution how = {};
    LabelledTokens tokens = {};
    std::vector<std::int64_t> sizes = {};
  };

  static variable_list forward(AutogradContext* node,
                               const at::Tensor& logits,
                               const at::Tensor& labels,
                               Use use) {
    use.tokens = LabelledTokens(labels);
    use.sizes = logits.sizes().vec();
    variable_list results =
        use.tokens.none()
            ? use.tokens.nothing(use.how, logits.options())
            : use.tokens.measure(use.tokens.of(logits), *use.weight, use.how, *use.context);
    mark(node, results, use.how);
    keep(node, std::move(use));
    return results;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    auto& use = kept<Use>(node);
    const at::TensorOptions options = grads.front().options().dtype(at::kFloat);
    if (use.tokens.none()) return {at::zeros(use.sizes, options), {}, {}};
    return {use.tokens.among_all(use.tokens.gradient(grads), use.sizes, at::kFloat), {}, {}};
  }
};

/// The samples of all ranks of a grid, from the products for this rank's samples.
variable_list of_split_samples(const at::Tensor& x_BTC,
                               const Param& weight_VC,
                               const Param* bias_V,
                               const at::Tensor& labels_BT,
                               StepContext& context,
                               const Distribution& how) {
  const OwnSamples own =
      flow_form(context).own_samples(labels_BT.size(0), FlowPlace::Inside, context);
  variable_list out =
      detail::apply<FromLogitsNode>(grid::linear(x_BTC, weight_VC, bias_V, at::kFloat, context),
                                    labels_BT.narrow(0, own.begin, own.count),
                                    FromLogitsNode::Use{&weight_VC, &context, how});
  for (at::Tensor& one : out)
    one = grid::all_samples(one, context);
  return out;
}

}  // namespace

TokenLogProbabilities token_log_probabilities(const at::Tensor& x_BTC,
                                              const Param& weight_VC,
                                              const Param* bias_V,
                                              const at::Tensor& labels_BT,
                                              StepContext& context,
                                              const Distribution& how) {
  if (!labels_BT.is_meta())
    ops::count_labels(labels_BT.contiguous().view({-1}), weight_VC.info().shape.front());
  const variable_list out =
      context.splits_samples()
          ? of_split_samples(x_BTC, weight_VC, bias_V, labels_BT, context, how)
          : detail::apply<LogProbabilitiesNode>(
                one_d::cut_of(weight_VC.info()) != one_d::Cut::None ? one_d::enter(x_BTC, context)
                                                                    : x_BTC,
                weight_VC.tensor(),
                bias_V != nullptr ? std::optional(bias_V->tensor()) : std::nullopt,
                labels_BT,
                LogProbabilitiesNode::Use{&weight_VC, bias_V, &context, how});
  return {out[0], how.squares ? out[1] : at::Tensor(), how.entropies ? out.back() : at::Tensor()};
}

NextDistributions::NextDistributions(const at::Tensor& logits_NV, const Distribution& how)
    : logits_NV_(logits_NV) {
  if (how.temperature != 1.0) logits_NV_.div_(how.temperature);
  ops::keep_support_(logits_NV_, {}, how.support);
  weights_NV_ = logits_NV_.clone();
  const at::Tensor out_2N =
      at::zeros({2, logits_NV_.size(0)}, logits_NV_.options().dtype(at::kDouble));
  largest_N_ = out_2N[0];
  sums_N_ = out_2N[1];
  ops::exp_rows_(weights_NV_, largest_N_, sums_N_);
  for (std::int64_t row = 0; row < logits_NV_.size(0); ++row) {
    TESSERA_REQUIRE(std::isfinite(sums_N_.const_data_ptr<double>()[row]),
                    Numeric,
                    "the logits of the next token contain NaN or Inf",
                    "lower the learning rate, or begin with other weights");
  }
}

std::int64_t NextDistributions::draw(std::int64_t row,
                                     std::int64_t vocab,
                                     std::uint64_t seed,
                                     std::int64_t position) const {
  const std::int64_t V = weights_NV_.size(1), count = std::min(vocab, V);
  const auto* const weights = weights_NV_.const_data_ptr<float>() + row * V;
  double total = 0.0;
  for (std::int64_t id = 0; id < count; ++id)
    total += static_cast<double>(weights[id]);
  const Philox::Block words = Philox{seed}(static_cast<std::uint64_t>(position));
  const double goal = uniform_double(words[0], words[1]) * total;
  double passed = 0.0;
  std::int64_t last = 0;
  for (std::int64_t id = 0; id < count; ++id) {
    if (weights[id] == 0.0F) continue;
    passed += static_cast<double>(weights[id]);
    last = id;
    if (goal < passed) break;
  }
  return last;
}

double NextDistributions::log_probability(std::int64_t row, std::int64_t id) const {
  const auto* const logits = logits_NV_.const_data_ptr<float>() + row * logits_NV_.size(1);
  return static_cast<double>(logits[id]) - largest_N_.const_data_ptr<double>()[row] -
         std::log(sums_N_.const_data_ptr<double>()[row]);
}

double NextDistributions::entropy(std::int64_t row) const {
  const std::int64_t V = logits_NV_.size(1);
  const auto* const weights = weights_NV_.const_data_ptr<float>() + row * V;
  const auto* const logits = logits_NV_.const_data_ptr<float>() + row * V;
  const double largest = largest_N_.const_data_ptr<double>()[row],
               sum = sums_N_.const_data_ptr<double>()[row];
  double below = 0.0;
  for (std::int64_t id = 0; id < V; ++id) {
    if (weights[id] > 0.0F)
      below += static_cast<double>(weights[id]) * (static_cast<double>(logits[id]) - largest);
  }
  return std::log(sum) - below / sum;
}

}  // namespace tessera::nn
