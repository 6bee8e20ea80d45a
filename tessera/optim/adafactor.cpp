// SPDX-License-Identifier: Apache-2.0
// Adafactor: the running mean of squares of a matrix is stored as one number per row and one per
// column. Source: Shazeer & Stern 2018; parameters and details as in Hugging Face's transformers.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "tessera/ops/fused_adamw.h"
#include "tessera/optim/params.h"
#include "tessera/optim/range.h"

namespace tessera::optim {
namespace {

struct AdafactorOptions {
  std::optional<double> lr = {}, beta1 = {};
  std::vector<double> eps = {1e-30, 1e-3};
  double clip_threshold = 1.0, decay_rate = -0.8, weight_decay = 0.0;
  bool scale_parameter = true, relative_step = true, warmup_init = false;

  void describe(config::Fields& f) {
    f.field("lr",
            lr,
            {.text = "Learning rate before the schedule is applied; requires relative_step false.",
             .min = 0});
    f.field(
        "eps",
        eps,
        {.text = "Epsilon added to squared gradients, and minimum root mean square of a parameter.",
         .min = 0});
    f.field("clip_threshold",
            clip_threshold,
            {.text = "Maximum root mean square of a parameter's update before the learning rate is "
                     "applied.",
             .min = 0,
             .above_min = true});
    f.field("decay_rate",
            decay_rate,
            {.text = "Exponent of the decay rate of the mean of squares, which is 1 - t^decay_rate "
                     "in update t.",
             .max = 0});
    f.field("beta1",
            beta1,
            {.text = "Decay rate of a momentum of the updates; without it there is no momentum.",
             .min = 0});
    f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
    f.field("scale_parameter",
            scale_parameter,
            {.text = "Multiply the learning rate by the root mean square of the parameter."});
    f.field(
        "relative_step",
        relative_step,
        {.text =
             "Use the learning rate min(0.01, 1 / sqrt(t)), which a schedule then multiplies."});
    f.field("warmup_init",
            warmup_init,
            {.text = "Use the learning rate min(0.000001 t, 1 / sqrt(t)) instead."});
  }

  void check(const json::Value& params, config::Problems& problems) {
    if (eps.size() != 2) {
      problems.add(
          place_of(params, "eps"), "eps", "expected two numbers", "\"eps\": [1e-30, 1e-3]");
      eps = AdafactorOptions{}.eps;
    }
    if (beta1) check_below_one(*beta1, "beta1", params, problems);
    if (lr && relative_step) {
      problems.add(place_of(params, "lr"),
                   "lr",
                   "relative_step determines the learning rate",
                   "\"relative_step\": false, or remove lr");
    }
    if (!lr && !relative_step) {
      problems.add(place_of(params, "relative_step"),
                   "lr",
                   "is missing, and relative_step is false",
                   "\"lr\": 0.001");
    }
    if (warmup_init && !relative_step) {
      problems.add(place_of(params, "warmup_init"),
                   "warmup_init",
                   "needs relative_step",
                   "\"relative_step\": true");
    }
  }
};

/// A matrix needs its whole gradient at once (WholeTensor); a vector only needs the norm of its
/// update.
class Adafactor final : public Rule {
 public:
  explicit Adafactor(AdafactorOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Scope scope(const ParamFacts& facts) const override {
    return facts.matrix ? Scope::WholeTensor : Scope::SegmentNorms;
  }
  [[nodiscard]] std::vector<StateSpec> state(const ParamFacts& facts) const override {
    std::vector<StateSpec> out;
    if (!facts.matrix) out.push_back({"exp_avg_sq"});
    if (options_.beta1) out.push_back({"exp_avg"});
    if (facts.matrix) {
      out.push_back({"exp_avg_sq_row", DType::F32, Extent::Rows});
      out.push_back({"exp_avg_sq_col", DType::F32, Extent::Columns});
    }
    return out;
  }
  /// Norms of the parameter; for a vector, of its update.
  [[nodiscard]] int num_norms(const ParamFacts& facts) const override {
    return facts.matrix ? 1 : 2;
  }
  [[nodiscard]] bool host_only() const override { return true; }
  [[nodiscard]] bool has_betas() const override { return false; }
  [[nodiscard]] double base_lr() const override { return options_.lr.value_or(1.0); }
  [[nodiscard]] bool makes_lr() const override { return options_.relative_step; }
  [[nodiscard]] double base_weight_decay() const override { return options_.weight_decay; }

  void prepare(const ShardView& view, const UpdateScalars& scalars, double* sums) const override {
    TESSERA_ASSERT(view.facts != nullptr);
    ops::chunk_square_sums(view.master, view.numel, ops::kRuleChunk, sums);
    if (view.facts->matrix) {
      ops::make_direction(range_of(view, scalars), nullptr, view.direction, 0.0, false);
    } else {
      move_vector(view, scalars, sums + chunks_of(view));
    }
  }

  void transform(const MatrixView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.state.size() == 2);
    const std::int64_t rows = view.facts->rows, columns = view.facts->columns;
    const auto height = static_cast<std::size_t>(rows), width = static_cast<std::size_t>(columns);
    std::vector<double> sums(std::max(height, width));
    std::vector<float> of_rows(height), of_columns(width);

    // Each row is one chunk here.
    ops::chunk_square_sums(view.direction, rows * columns, columns, sums.data());
    const double mean = move_means(view.state[0], sums, rows, columns, scalars);
    for (std::size_t r = 0; r < height; ++r)
      of_rows[r] = static_cast<float>(1.0 / std::sqrt(view.state[0][r] / mean));
    ops::column_square_sums(view.direction, rows, columns, sums.data());
    move_means(view.state[1], sums, columns, rows, scalars);
    for (std::size_t c = 0; c < width; ++c)
      of_columns[c] = static_cast<float>(1.0 / std::sqrt(static_cast<double>(view.state[1][c])));

    ops::scale_rows_columns(view.direction, rows, columns, of_rows.data(), of_columns.data());
    ops::chunk_square_sums(view.direction, rows * columns, columns, sums.data());
    const double norm = gradient_norm(std::span<const double>(sums).first(height));
    const double factor = clip_factor(norm, *view.facts);
    if (factor == 1.0) return;
    ops::make_direction({.grad = view.direction, .numel = rows * columns, .grad_scale = factor},
                        nullptr,
                        view.direction,
                        0.0,
                        false);
  }

  void update(const ShardView& view, const UpdateScalars& scalars) const override {
    TESSERA_ASSERT(view.facts != nullptr);
    const double lr = lr_of(view, scalars) * relative(scalars.step) * size_of(view);
    const ops::DirectionStep step{.rate = lr,
                                  .decay = lr * decay_of(view, scalars, options_.weight_decay),
                                  .beta1 = scalars.beta1.value_or(options_.beta1.value_or(0.0))};
    float* const average = options_.beta1 ? view.state.back() : nullptr;
    if (view.facts->matrix) {
      ops::apply_direction(range_of(view, scalars), view.direction, average, step);
    } else {
      update_vector(view, scalars, average, step);
    }
  }

 private:
  [[nodiscard]] double decay_of_means(std::int64_t step) const {
    return 1.0 - std::pow(static_cast<double>(step), options_.decay_rate);
  }

  /// Updates the means of rows, or of columns: mean = decay mean + (1 - decay) (sums / each + eps).
  /// Returns the mean of the means.
  double move_means(float* means,
                    const std::vector<double>& sums,
                    std::int64_t count,
                    std::int64_t each,
                    const UpdateScalars& scalars) const {
    const double decay = decay_of_means(scalars.step);
    double total = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double square =
          sums[static_cast<std::size_t>(i)] / static_cast<double>(each) + options_.eps[0];
      means[i] = static_cast<float>(decay * means[i] + (1.0 - decay) * square);
      total += means[i];
    }
    return total / static_cast<double>(count);
  }

  /// Vectors are short: plain loops in fp64.
  void move_vector(const ShardView& view, const UpdateScalars& scalars, double* sums) const {
    float* const means = view.state[0];
    const double decay = decay_of_means(scalars.step);
    for (std::int64_t i = 0; i < view.numel; ++i) {
      const double g = view.grad[i] * scalars.grad_scale;
      means[i] = static_cast<float>(decay * means[i] + (1.0 - decay) * (g * g + options_.eps[0]));
      const double u = g / std::sqrt(static_cast<double>(means[i]));
      if (i % ops::kRuleChunk == 0) sums[i / ops::kRuleChunk] = 0.0;
      sums[i / ops::kRuleChunk] += u * u;
    }
  }

  void update_vector(const ShardView& view,
                     const UpdateScalars& scalars,
                     float* average,
                     const ops::DirectionStep& step) const {
    const double factor = clip_factor(view.norms[1], *view.facts);
    std::vector<float> direction(static_cast<std::size_t>(view.numel));
    for (std::int64_t i = 0; i < view.numel; ++i) {
      const double g = view.grad[i] * scalars.grad_scale;
      direction[static_cast<std::size_t>(i)] =
          static_cast<float>(factor * g / std::sqrt(static_cast<double>(view.state[0][i])));
    }
    ops::apply_direction(range_of(view, scalars), direction.data(), average, step);
  }

  static double root_mean_square(double norm, const ParamFacts& facts) {
    return norm / std::sqrt(static_cast<double>(facts.numel()));
  }
  [[nodiscard]] double clip_factor(double norm, const ParamFacts& facts) const {
    return 1.0 / std::max(1.0, root_mean_square(norm, facts) / options_.clip_threshold);
  }
  [[nodiscard]] double relative(std::int64_t step) const {
    if (!options_.relative_step) return 1.0;
    const double t = static_cast<double>(step);
    return std::min(options_.warmup_init ? 1e-6 * t : 1e-2, 1.0 / std::sqrt(t));
  }
  [[nodiscard]] double size_of(const ShardView& view) const {
    if (!options_.scale_parameter) return 1.0;
    return std::max(options_.eps[1], root_mean_square(view.norms[0], *view.facts));
  }

  AdafactorOptions options_;
};

std::unique_ptr<Rule> make_adafactor(const json::Value& params,
                                     config::Problems& problems,
                                     config::Origins& origins) {
  auto options = read_rule_params<AdafactorOptions>(params, problems, origins);
  options.check(params, problems);
  return std::make_unique<Adafactor>(std::move(options));
}

TESSERA_OPTIMIZER("Adafactor", make_adafactor);

}  // namespace
}  // namespace tessera::optim
