// SPDX-License-Identifier: Apache-2.0
// Muon: hidden matrices are updated with their orthogonalized momentum; vectors, tables and heads
// by AdamW. Source: Jordan et al. 2024. Keys as in DeepSpeed, where `lr` and `weight_decay` apply
// to both parts and `betas` and `eps` to AdamW, and also those of torch.optim.Muon.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/ops/newton_schulz.h"
#include "tessera/optim/adam.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

/// Factor on the learning rate of a matrix.
enum class AdjustLr : std::uint8_t { Original, MatchRmsAdamW, Spectral, UnitRmsNorm };
constexpr auto kAdjustLr =
    std::to_array<config::Named<AdjustLr>>({{AdjustLr::Original, "original"},
                                            {AdjustLr::MatchRmsAdamW, "match_rms_adamw"},
                                            {AdjustLr::Spectral, "spectral"},
                                            {AdjustLr::UnitRmsNorm, "unit_rms_norm"}});
/// DeepSpeed's implementations of the iteration, which give the same result.
enum class NewtonSchulzMethod : std::uint8_t { Gram, Standard };
constexpr auto kNewtonSchulzMethods = std::to_array<config::Named<NewtonSchulzMethod>>(
    {{NewtonSchulzMethod::Gram, "gram"}, {NewtonSchulzMethod::Standard, "standard"}});

/// After check(), `lr` applies to hidden matrices and `adam_lr` to AdamW.
struct MuonOptions {
  double lr = 0.02, momentum = 0.95, weight_decay = 0.0, ns_eps = 1e-7;
  std::optional<double> muon_lr, adam_lr, eps, adam_eps,
      adam_weight_decay;  ///< check() merges them
  bool nesterov = true, torch_adam = false, adam_w_mode = true, fp32_optimizer_states = true;
  std::int64_t ns_steps = 5;
  std::vector<double> ns_coefficients = {3.4445, -4.7750, 2.0315};
  std::vector<double> betas = {0.9, 0.95}, adam_betas = {0.9, 0.95};
  NewtonSchulzMethod ns_method = NewtonSchulzMethod::Gram;
  AdjustLr adjust_lr_fn = AdjustLr::Original;
  double scale_factor = 1.0;
  bool split_qkv = false;

  void describe(config::Fields& f) {
    f.field("lr",
            lr,
            {.text = "Learning rate before the schedule is applied.", .min = 0, .above_min = true});
    f.field("muon_lr",
            muon_lr,
            {.text = "Learning rate of hidden matrices.",
             .min = 0,
             .above_min = true,
             .default_text = "lr"});
    f.field("momentum", momentum, {.text = "Momentum coefficient.", .min = 0});
    f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
    describe_direction(f);
    describe_adam(f);
  }
  void describe_direction(config::Fields& f) {
    f.field("nesterov", nesterov, {.text = "Use Nesterov momentum."});
    f.field("ns_steps",
            ns_steps,
            {.text = "Number of Newton-Schulz iterations.", .unit = "rounds", .min = 1, .max = 99});
    f.field(
        "ns_coefficients",
        ns_coefficients,
        {.text =
             "Coefficients a, b, c of an iteration: X = a X + (b A + c A^2) X with A = X X^T. More "
             "sets of three are those of the following iterations, in turn."});
    f.field("ns_eps",
            ns_eps,
            {.text = "Lower bound of the norm that a momentum is divided by.", .min = 0});
    f.choice(
        "ns_method",
        ns_method,
        kNewtonSchulzMethods,
        {.text =
             "Selects one of two implementations of the iteration in DeepSpeed; no effect here."});
    f.choice("adjust_lr_fn",
             adjust_lr_fn,
             kAdjustLr,
             {.text = "Factor on lr for a matrix of R rows and C columns: sqrt(max(1, R / C)); "
                      "0.2 sqrt(max(R, C)) to match learning rates of AdamW; spectral, sqrt(max(R, "
                      "C)); or unit_rms_norm, sqrt(R / C)."});
    f.field("scale_factor",
            scale_factor,
            {.text = "Another factor on lr for hidden matrices.", .min = 0, .above_min = true});
    f.field("split_qkv",
            split_qkv,
            {.text = "Orthogonalize queries, keys and values of one projection each on its own."});
  }
  void describe_adam(config::Fields& f) {
    f.field("adam_lr",
            adam_lr,
            {.text = "Learning rate of AdamW; the schedule scales it in proportion.",
             .min = 0,
             .default_text = "lr if given, else 3e-4"});
    f.field("betas",
            betas,
            {.text = "Decay rates of AdamW's running averages of the gradient and of its square.",
             .min = 0,
             .max = 1});
    f.field("adam_betas",
            adam_betas,
            {.text = "Alias of betas.", .min = 0, .max = 1, .default_text = "betas"});
    f.field("eps",
            eps,
            {.text = "Added to AdamW's denominator for numerical stability.",
             .min = 0,
             .default_text = "1e-10"});
    f.field("adam_eps", adam_eps, {.text = "Alias of eps.", .min = 0, .default_text = "eps"});
    f.field("adam_weight_decay",
            adam_weight_decay,
            {.text = "Weight decay of the parameters that AdamW updates.",
             .min = 0,
             .default_text = "weight_decay"});
    f.field("adam_w_mode",
            adam_w_mode,
            {.text = "AdamW uses decoupled weight decay (true) or L2 regularization (false)."});
    f.field("torch_adam", torch_adam, {.text = "As for Adam."});
    f.field("fp32_optimizer_states", fp32_optimizer_states, {.text = "As for Adam."});
  }

  void check(const json::Value& params, config::Problems& problems) {
    check_below_one(momentum, "momentum", params, problems);
    check_betas(betas, MuonOptions{}.betas, params, problems);
    check_betas(adam_betas, MuonOptions{}.betas, params, problems, "adam_betas");
    ConstructorOptions{.fp32_optimizer_states = fp32_optimizer_states}.check(params, problems);
    const bool both = is_given(params, "betas") && is_given(params, "adam_betas");
    if (both && betas != adam_betas) refuse_two("adam_betas", "betas", params, problems);
    if (eps && adam_eps && *eps != *adam_eps) refuse_two("adam_eps", "eps", params, problems);
    if (!is_given(params, "adam_betas")) adam_betas = betas;
    constexpr double kOwnRate = 3e-4;
    if (!adam_lr) adam_lr = is_given(params, "lr") ? lr : kOwnRate;
    if (!adam_eps) adam_eps = eps.value_or(1e-10);
    if (!adam_weight_decay) adam_weight_decay = weight_decay;
    lr = muon_lr.value_or(lr);
    check_coefficients(params, problems);
  }
  static void refuse_two(const char* key,
                         const char* other,
                         const json::Value& params,
                         config::Problems& problems) {
    problems.add(place_of(params, key),
                 key,
                 fmt::format("differs from {}, which is the same option", other),
                 "remove one of them");
  }
  void check_coefficients(const json::Value& params, config::Problems& problems) {
    if (!ns_coefficients.empty() && ns_coefficients.size() % 3 == 0) return;
    problems.add(place_of(params, "ns_coefficients"),
                 "ns_coefficients",
                 "expected three numbers, or sets of three",
                 "\"ns_coefficients\": [3.4445, -4.775, 2.0315]");
    ns_coefficients = MuonOptions{}.ns_coefficients;
  }
};

class Muon final : public Rule {
 public:
  explicit Muon(MuonOptions options)
      : options_(std::move(options)),
        adamw_(adam({.lr = options_.adam_lr.value(),
                     .eps = options_.adam_eps.value(),
                     .weight_decay = options_.adam_weight_decay.value(),
                     .betas = options_.adam_betas,
                     .adam_w_mode = options_.adam_w_mode})) {}

  [[nodiscard]] Scope scope(const ParamFacts& facts) const override {
    return hidden(facts) ? Scope::WholeTensor : adamw_->scope(facts);
  }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts& facts) const override {
    if (!hidden(facts)) return adamw_->state(facts);
    return {{"momentum_buffer"}};
  }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr; }
  /// Returns AdamW's weight decay if hidden matrices have none.
  [[nodiscard]] double base_weight_decay() const override {
    return options_.weight_decay != 0.0 ? options_.weight_decay : adamw_->base_weight_decay();
  }

  void prepare(const ShardView& view, const UpdateScalars& scalars, double*) const override {
    TESSERA_ASSERT(view.state.size() == 1 && view.direction != nullptr);
    ops::make_direction(range_of(view, scalars),
                        view.state[0],
                        view.direction,
                        scalars.beta1.value_or(options_.momentum),
                        options_.nesterov);
  }

  void transform(const MatrixView& view, const UpdateScalars&) const override {
    const std::vector<double>& c = options_.ns_coefficients;
    ops::NewtonSchulz how = {
        .coefficients = {}, .steps = static_cast<int>(options_.ns_steps), .eps = options_.ns_eps};
    for (std::size_t i = 0; i + 2 < c.size(); i += 3)
      how.coefficients.push_back({c[i], c[i + 1], c[i + 2]});
    const ParamFacts& facts = *view.facts;
    if (!splits(facts)) return ops::orthogonalize(view.direction, facts.rows, facts.columns, how);
    ops::MatrixParts parts = {.groups = facts.row_groups, .parts = {}};
    for (const std::int64_t rows : facts.row_parts)
      parts.parts.push_back({rows, adjustment(facts.row_groups * rows, facts.columns)});
    ops::orthogonalize_parts(view.direction, facts.columns, parts, how);
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.facts != nullptr);
    if (!hidden(*view.facts)) return update_adamw(view, scalars);
    const double lr = lr_of(view, scalars);
    ops::apply_direction(range_of(view, scalars),
                         view.direction,
                         nullptr,
                         {.rate = lr * factor(*view.facts),
                          .decay = lr * decay_of(view, scalars, options_.weight_decay)});
  }

 private:
  static bool hidden(const ParamFacts& facts) { return facts.matrix && !facts.embedding; }

  [[nodiscard]] bool splits(const ParamFacts& facts) const {
    return options_.split_qkv && !facts.row_parts.empty();
  }
  /// The factor on lr that transform() has not applied to the parts.
  [[nodiscard]] double factor(const ParamFacts& facts) const {
    const double of_matrix = splits(facts) ? 1.0 : adjustment(facts.rows, facts.columns);
    return options_.scale_factor * of_matrix;
  }
  [[nodiscard]] double adjustment(std::int64_t all_rows, std::int64_t all_columns) const {
    const auto rows = static_cast<double>(all_rows), columns = static_cast<double>(all_columns);
    switch (options_.adjust_lr_fn) {
      case AdjustLr::Original:
        return std::sqrt(std::max(1.0, rows / columns));
      case AdjustLr::MatchRmsAdamW:
        return 0.2 * std::sqrt(std::max(rows, columns));
      case AdjustLr::UnitRmsNorm:
        return std::sqrt(rows / columns);
      case AdjustLr::Spectral:
        break;
    }
    return std::sqrt(std::max(rows, columns));
  }

  void update_adamw(ShardView view, const UpdateScalars& scalars) const {
    if (!view.lr_scale) view.lr_scale = options_.adam_lr.value() / options_.lr;
    adamw_->update(view, scalars);
  }

  MuonOptions options_;
  std::unique_ptr<Rule> adamw_;
};

std::unique_ptr<Rule> make_muon(const json::Value& params,
                                config::Problems& problems,
                                config::Origins& origins) {
  auto options = read_rule_params<MuonOptions>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<Muon>(std::move(options));
}

TESSERA_OPTIMIZER("Muon", make_muon);

}  // namespace
}  // namespace tessera::optim
