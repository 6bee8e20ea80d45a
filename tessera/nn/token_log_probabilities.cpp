// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/token_log_probabilities.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/nn/autograd.h"
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
        cut_ ? one_d::all_of(out_5N, *context.tensor->group, "log-probabilities", context)
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

struct LogProbabilitiesNode : torch::autograd::Function<LogProbabilitiesNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    Distribution how = {};
    std::optional<Distributions> of = {};
    at::Tensor rows_N = {}, slope_NV = {}, x_NC = {};
  };

  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const at::Tensor& labels,
                               Use use) {
    const bool want_grad = use.context->training();
    const at::Tensor flat = labels.reshape({-1});
    const auto fp64 = x.options().dtype(at::kDouble);
    const auto zeros = [&](bool wanted) {
      return wanted ? at::zeros({flat.size(0)}, fp64) : at::Tensor();
    };
    const at::Tensor out = zeros(true), squares = zeros(use.how.squares),
                     entropies = zeros(use.how.entropies);
    // Meta tensors have no label values, so every token counts as labelled.
    use.rows_N = x.is_meta() ? at::empty({flat.size(0)}, flat.options())
                             : flat.ne(ops::kIgnoreLabel).nonzero().squeeze(1);
    if (use.rows_N.size(0) > 0) {
      use.x_NC = x.is_meta() ? rows(x) : rows(x).index_select(0, use.rows_N);
      at::Tensor logits =
          ops::linear(use.x_NC, matrix(weight), bias ? *bias : at::Tensor(), at::kFloat);
      use.slope_NV = ops::soft_cap_(logits, use.how.softcap, want_grad);
      if (use.how.temperature != 1.0) logits.div_(use.how.temperature);
      const at::Tensor labels_N = x.is_meta() ? use.rows_N : flat.index_select(0, use.rows_N);
      const ParamInfo& info = use.weight->info();
      const bool cut = one_d::cut_of(info) != one_d::Cut::None;
      const Share share{cut, cut ? info.held().begin.front() : 0, logits.size(1)};
      // A support is a fact of the whole row, and exactness needs generation's order of the sums.
      const bool gathered = cut && (!use.how.support.whole() || ops::batch_invariant());
      if (gathered) logits = one_d::gather_vocab(logits, *use.weight, *use.context).contiguous();
      ops::keep_support_(logits, labels_N, use.how.support);
      use.of.emplace(logits, labels_N, share, gathered);
      const TokenLogProbabilities made = use.of->measure(use.how, *use.context);
      if (!x.is_meta()) {
        out.index_copy_(0, use.rows_N, made.values_BT);
        if (use.how.squares) squares.index_copy_(0, use.rows_N, made.log_sums_of_squares_BT);
        if (use.how.entropies) entropies.index_copy_(0, use.rows_N, made.entropies_BT);
      }
    }
    save(node, {x, weight});
    variable_list results = {out.view(labels.sizes())};
    if (squares.defined()) results.push_back(squares.view(labels.sizes()));
    if (squares.defined() && node != nullptr) node->mark_non_differentiable({results.back()});
    if (entropies.defined()) results.push_back(entropies.view(labels.sizes()));
    keep(node, std::move(use));
    return results;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& use = kept<Use>(node);
    at::Tensor dx = at::zeros_like(x);
    if (!use.of) return {dx, {}, {}, {}, {}};
    const auto of_labels = [&](const at::Tensor& grad) {
      if (!grad.defined()) return at::Tensor();
      return x.is_meta() ? grad.reshape({-1}) : grad.reshape({-1}).index_select(0, use.rows_N);
    };
    const at::Tensor incoming_N = of_labels(grads[0]);
    at::Tensor dlogits = use.of->gradient(
        incoming_N.defined() ? incoming_N : at::zeros({use.rows_N.size(0)}, use.x_NC.options()),
        use.how.entropies ? of_labels(grads.back()) : at::Tensor());
    use.of.reset();
    if (use.how.temperature != 1.0) dlogits.div_(use.how.temperature);
    if (use.slope_NV.defined()) dlogits.mul_(std::exchange(use.slope_NV, {}));
    const at::Tensor dy = dlogits.to(x.scalar_type()), x_NC = use.x_NC;
    if (node->needs_input_grad(0)) {
      const at::Tensor dx_NC = ops::linear_input_grad(dy, matrix(weight));
      if (x.is_meta()) {
        dx = dx_NC.view(x.sizes());
      } else {
        dx.view({-1, x.size(-1)}).index_copy_(0, use.rows_N, dx_NC.to(x.scalar_type()));
      }
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

}  // namespace

TokenLogProbabilities token_log_probabilities(const at::Tensor& x_BTC,
                                              const Param& weight_VC,
                                              const Param* bias_V,
                                              const at::Tensor& labels_BT,
                                              StepContext& context,
                                              const Distribution& how) {
  TESSERA_REQUIRE(!context.on_grid(),
                  Unsupported,
                  fmt::format("block {} reads the log-probabilities of single tokens, which ranks "
                              "of a grid do not have",
                              context.block_name),
                  "set parallel.tensor.mode to 1d");
  if (!labels_BT.is_meta())
    ops::count_labels(labels_BT.contiguous().view({-1}), weight_VC.info().shape.front());
  const bool cut = one_d::cut_of(weight_VC.info()) != one_d::Cut::None;
  const variable_list out = detail::apply<LogProbabilitiesNode>(
      cut ? one_d::enter(x_BTC, context) : x_BTC,
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
                    "the logits of the next token are not numbers",
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
