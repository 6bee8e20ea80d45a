// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/low_rank.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/layer_form.h"
#include "tessera/nn/local_layers.h"
#include "tessera/nn/low_rank_form.h"
#include "tessera/nn/low_rank_names.h"
#include "tessera/nn/tiled_form.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {
namespace {

using enum LogicalAxis;

// The ends of the parameters' names.
constexpr const char *kEndOfA = ".lora_A.weight", *kEndOfB = ".lora_B.weight",
                     *kEndOfMagnitude = ".lora_magnitude_vector",
                     *kEndOfTableA = ".lora_embedding_A", *kEndOfTableB = ".lora_embedding_B";

/// Number of WithoutAdapters on this thread.
thread_local int adapters_off = 0;
/// The innermost one on this thread.
thread_local MergedAdapters* merged_adapters = nullptr;

/// Ranks of a grid hold the features of A and B as they hold the vector of these features
/// (grid_low_rank.h).
constexpr Role kRole = Role::Vector;

/// The parameters of a part.
struct LowRankParams {
  LowRankPart part;
  Param* a = nullptr;
  Param* b = nullptr;
  Param* magnitude = nullptr;  ///< nullptr: none
};

[[noreturn]] void refuse_form(const Param& weight, const char* use) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} has an adapter for another use than {}", weight.info().name, use),
              "leave it out of adapter.targets");
}

/// Dropout of the input of `weight`, of whose features each rank may hold a share.
at::Tensor drop_input(const at::Tensor& x,
                      const Param& weight,
                      const LowRankPart& part,
                      const Param& a,
                      const StepContext& context) {
  const ops::DropoutKey key = context.dropout("adapter." + part.module, part.dropout);
  if (!key.active()) return x;
  return low_rank_form(weight, context).drop_input(x, key, weight.info(), a, context);
}

class LowRankLinear final : public LayerForm {
 public:
  LowRankLinear(std::vector<LowRankParams> parts, int dim) : parts_(std::move(parts)), dim_(dim) {}

  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    if (adapters_off > 0) return plain_linear(x, weight, bias, context);
    if (merged_adapters != nullptr && !context.training()) {
      const Param& whole = merged_adapters->weight(*this, [&] { return merged(weight, context); });
      return plain_linear(x, whole, bias, context);
    }
    if (scales()) return scaled(x, weight, bias, context);
    return plain_linear(x, weight, bias, context) + change(x, weight, context);
  }

  /// True if the adapter has a magnitude.
  [[nodiscard]] bool scales() const { return parts_.front().magnitude != nullptr; }
  /// scale * B A dropout(x) for all of this rank's outputs [..., O]. Not with a magnitude.
  [[nodiscard]] at::Tensor change(const at::Tensor& x,
                                  const Param& weight,
                                  StepContext& context) const {
    return over_parts(weight, 0.0, [&](const LowRankParams& part) {
      return product(drop_input(x, weight, part.part, *part.a, context), weight, part, context);
    });
  }

  at::Tensor embedding(const at::Tensor& /*ids_BT*/,
                       const Param& table,
                       StepContext& /*context*/) const override {
    refuse_form(table, "a product");
  }

 private:
  /// scale * B (A x) for this rank's outputs.
  static at::Tensor product(const at::Tensor& x,
                            const Param& weight,
                            const LowRankParams& part,
                            StepContext& context) {
    return low_rank_form(weight, context).product(x, *part.a, *part.b, part.part.scale, context);
  }

  /// Concatenates of(part) [..., outputs of the part] over the parts in the order of the weight's
  /// outputs [..., O]; outputs without a part get `elsewhere`.
  template <class Of>
  at::Tensor over_parts(const Param& weight, double elsewhere, const Of& of) const {
    if (dim_ < 0) return of(parts_.front());
    const Shape lead = own_outputs(weight);
    std::vector<at::Tensor> pieces;
    std::vector<std::int64_t> outer;
    const auto sizes_of = [&](std::int64_t size) {
      std::vector<std::int64_t> sizes = outer;
      sizes.insert(sizes.end(), lead.begin(), lead.end());
      sizes[outer.size() + static_cast<std::size_t>(dim_)] = size;
      return sizes;
    };
    std::int64_t at = 0;
    const auto fill_up_to = [&](std::int64_t end, const at::Tensor& like) {
      if (at < end) pieces.push_back(at::full(sizes_of(end - at), elsewhere, like.options()));
      at = end;
    };
    const auto d = static_cast<std::size_t>(dim_);
    for (const LowRankParams& part : parts_) {
      const at::Tensor made = of(part);
      outer = made.sizes().vec();
      outer.pop_back();
      fill_up_to(part.part.begin[d], made);
      pieces.push_back(made.reshape(sizes_of(part.part.sizes[d])));
      at += part.part.sizes[d];
    }
    fill_up_to(lead[d], pieces.back());
    std::vector<std::int64_t> sizes = outer;
    sizes.push_back(c10::multiply_integers(lead));
    return at::cat(pieces, static_cast<std::int64_t>(outer.size()) + dim_).reshape(sizes);
  }

  /// This rank's outputs of the weight [O...]. On a grid, W itself may be split further.
  [[nodiscard]] Shape own_outputs(const Param& weight) const {
    Shape out = parts_.front().b->info().local_shape();
    out.pop_back();
    const auto d = static_cast<std::size_t>(dim_);
    out[d] = weight.info().shape[d];
    return out;
  }

  /// The norms of the rows of W + scale B A for this rank's outputs of the part, fp32 and without a
  /// gradient.
  at::Tensor norms(const Param& weight, const LowRankParams& part, StepContext& context) const {
    const c10::NoGradGuard no_grad;
    TESSERA_REQUIRE(tiled_form_of(weight) == nullptr,
                    Unsupported,
                    fmt::format("not built yet: {} in tiles, because its adapter has a magnitude "
                                "(DoRA), for which all rows are read at once",
                                weight.info().name),
                    "remove it from the section tiling, or set adapter.type to \"lora\"");
    at::Tensor held = weight.tensor();
    if (weight.scales().defined()) {
      const at::Tensor rows = held.reshape({-1, held.size(-1)});
      held = ops::from_int8({rows, weight.scales()}, at::kFloat).view(held.sizes());
    }
    if (dim_ >= 0) {
      const auto d = static_cast<std::size_t>(dim_);
      held = held.narrow(dim_, part.part.begin[d], part.part.sizes[d]);
    }
    return low_rank_form(weight, context)
        .row_norms(held, weight.info(), *part.a, *part.b, part.part.scale, context);
  }

  /// f (W x + scale B A x) + bias with f = magnitude / norm. With dropout the adapter sees x' =
  /// dropout(x), and so does the change of W's own product: W x + (f - 1) W x' + f scale B A x'.
  at::Tensor scaled(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const {
    const at::Tensor factors =
        over_parts(weight, 1.0, [&](const LowRankParams& part) {
          const at::Tensor magnitude =
              low_rank_form(weight, context).magnitude(*part.magnitude, context);
          return magnitude.reshape({-1}).to(at::kFloat) / norms(weight, part, context);
        }).to(x.scalar_type());
    at::Tensor y = plain_linear(x, weight, nullptr, context);
    const bool drops = context.training() && parts_.front().part.dropout > 0;
    if (!drops) {
      y = (y + over_parts(
                   weight,
                   0.0,
                   [&](const LowRankParams& part) { return product(x, weight, part, context); })) *
          factors;
    } else {
      y = y + over_parts(weight, 0.0, [&](const LowRankParams& part) {
            const at::Tensor dropped = drop_input(x, weight, part.part, *part.a, context);
            const at::Tensor own = plain_linear(dropped, weight, nullptr, context);
            return rows_of(own * (factors - 1), weight, part) +
                   product(dropped, weight, part, context) * rows_of(factors, weight, part);
          });
    }
    return bias == nullptr ? y : detail::add_bias(y, *bias, context);
  }

  /// The weight with its change, of which this rank holds the same box; added in fp32.
  std::unique_ptr<Param> merged(const Param& weight, StepContext& context) const {
    TESSERA_ASSERT(low_rank_form(weight, context).merges() && !weight.scales().defined());
    const c10::NoGradGuard no_grad;
    at::Tensor out = weight.tensor().detach().clone();
    for (const LowRankParams& part : parts_) {
      const auto d = static_cast<std::size_t>(std::max(dim_, 0));
      const at::Tensor box =
          dim_ < 0 ? out : out.narrow(dim_, part.part.begin[d], part.part.sizes[d]);
      at::Tensor rows =
          at::addmm(box.reshape({-1, box.size(-1)}).to(at::kFloat),
                    part.b->tensor().detach().reshape({-1, part.part.rank}).to(at::kFloat),
                    part.a->tensor().detach().to(at::kFloat) * part.part.scale);
      if (part.magnitude != nullptr) {
        rows *= (part.magnitude->tensor().detach().reshape({-1}).to(at::kFloat) /
                 norms(weight, part, context))
                    .unsqueeze(1);
      }
      box.copy_(rows.view(box.sizes()));
    }
    auto made = std::make_unique<Param>(weight.shared_info());
    made->attach(std::move(out));
    return made;
  }

  /// [..., O] -> [..., outputs of the part].
  at::Tensor rows_of(const at::Tensor& x, const Param& weight, const LowRankParams& part) const {
    if (dim_ < 0) return x;
    const Shape lead = own_outputs(weight);
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.pop_back();
    const auto outer = static_cast<std::int64_t>(sizes.size());
    sizes.insert(sizes.end(), lead.begin(), lead.end());
    const auto d = static_cast<std::size_t>(dim_);
    // A rank may have no sample, so that the number of outputs is not deduced.
    return x.reshape(sizes)
        .narrow(outer + dim_, part.part.begin[d], part.part.sizes[d])
        .flatten(outer);
  }

  std::vector<LowRankParams> parts_;  ///< ascending by their first output
  /// The dim that the parts divide; -1: one part covers all outputs.
  int dim_;
};

class LowRankTable final : public LayerForm {
 public:
  explicit LowRankTable(LowRankParams params) : params_(std::move(params)) {}

  at::Tensor linear(const at::Tensor& /*x*/,
                    const Param& weight,
                    const Param* /*bias*/,
                    StepContext& /*context*/) const override {
    refuse_form(weight, "a look-up");
  }
  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    if (adapters_off > 0) return plain_embedding(ids_BT, table, context);
    TESSERA_REQUIRE(!context.splits_samples(),
                    Unsupported,
                    fmt::format("{} is a table with an adapter, which ranks of a grid do not share",
                                table.info().name),
                    "leave it out of adapter.targets, or set parallel.tensor.mode to 1d");
    const at::Tensor low = plain_embedding(ids_BT, *params_.a, context) * params_.part.scale;
    return plain_embedding(ids_BT, table, context) +
           plain_linear(low, *params_.b, nullptr, context);
  }

 private:
  LowRankParams params_;
};

/// The samples of a batch by their adapter.
struct SamplesOf {
  std::int64_t adapter = -1;
  std::vector<std::int64_t> rows;
};

std::vector<SamplesOf> samples_by_adapter(const StepContext& context) {
  if (context.batch == nullptr || !context.batch->has(kAdapterNumber)) return {};
  const at::Tensor numbers = host_values(context.batch->tensor(kAdapterNumber));
  const auto* const values = numbers.data_ptr<std::int64_t>();
  std::vector<SamplesOf> out;
  for (std::int64_t row = 0; row < numbers.numel(); ++row) {
    auto found = std::find_if(
        out.begin(), out.end(), [&](const SamplesOf& one) { return one.adapter == values[row]; });
    if (found == out.end()) found = out.insert(out.end(), SamplesOf{values[row], {}});
    found->rows.push_back(row);
  }
  return out;
}

/// Several adapters of a weight, of which each sample uses one.
template <class Form>
class LowRankChooser final : public LayerForm {
 public:
  /// nullptr: the adapter does not change the weight.
  explicit LowRankChooser(std::vector<std::shared_ptr<const Form>> adapters)
      : adapters_(std::move(adapters)) {}

  at::Tensor linear(const at::Tensor& x,
                    const Param& weight,
                    const Param* bias,
                    StepContext& context) const override {
    const auto plain = [&](const at::Tensor& rows) {
      return plain_linear(rows, weight, bias, context);
    };
    if constexpr (requires(const Form& form) { form.scales(); }) {
      const std::vector<SamplesOf> all = samples_by_adapter(context);
      const bool scales = std::any_of(all.begin(), all.end(), [&](const SamplesOf& one) {
        return form_of_number(one.adapter) != nullptr && form_of_number(one.adapter)->scales();
      });
      if (all.size() > 1 && !scales) {
        require_rows(x, weight, context);
        at::Tensor y = plain(x);
        for (const SamplesOf& one : all) {
          const Form* const form = form_of_number(one.adapter);
          if (form == nullptr) continue;
          const at::Tensor rows = on_device(at::tensor(one.rows, at::kLong), x.device());
          y = y.index_add(0, rows, form->change(x.index_select(0, rows), weight, context));
        }
        return y;
      }
    }
    return for_each_adapter(
        x, weight, context, plain, [&](const Form& form, const at::Tensor& rows) {
          return form.linear(rows, weight, bias, context);
        });
  }

  at::Tensor embedding(const at::Tensor& ids_BT,
                       const Param& table,
                       StepContext& context) const override {
    return for_each_adapter(
        ids_BT,
        table,
        context,
        [&](const at::Tensor& rows) { return plain_embedding(rows, table, context); },
        [&](const Form& form, const at::Tensor& rows) {
          return form.embedding(rows, table, context);
        });
  }

 private:
  [[nodiscard]] const Form* form_of_number(std::int64_t adapter) const {
    return adapter < 0 ? nullptr : adapters_.at(static_cast<std::size_t>(adapter)).get();
  }

  static void require_rows(const at::Tensor& x, const Param& weight, const StepContext& context) {
    TESSERA_REQUIRE(
        x.dim() > 1 && x.size(0) == context.batch->tensor(kAdapterNumber).numel(),
        Unsupported,
        fmt::format("{} does not compute its samples as rows, and they have different adapters",
                    weight.info().name),
        "use one adapter at a time");
  }

  /// Computes the samples of each adapter together.
  template <class Plain, class Adapted>
  at::Tensor for_each_adapter(const at::Tensor& x,
                              const Param& weight,
                              const StepContext& context,
                              const Plain& plain,
                              const Adapted& adapted) const {
    const auto of = [&](std::int64_t adapter, const at::Tensor& rows) {
      const Form* const form = form_of_number(adapter);
      return form == nullptr ? plain(rows) : adapted(*form, rows);
    };
    const std::vector<SamplesOf> all = samples_by_adapter(context);
    if (all.empty()) return plain(x);
    if (all.size() == 1) return of(all.front().adapter, x);
    require_rows(x, weight, context);
    at::Tensor out;
    for (const SamplesOf& one : all) {
      const at::Tensor rows = on_device(at::tensor(one.rows, at::kLong), x.device());
      const at::Tensor made = of(one.adapter, x.index_select(0, rows));
      if (!out.defined()) {
        std::vector<std::int64_t> sizes = made.sizes().vec();
        sizes.front() = x.size(0);
        out = at::empty(sizes, made.options());
      }
      out.index_copy_(0, rows, made);
    }
    return out;
  }

  std::vector<std::shared_ptr<const Form>> adapters_;
};

void require_no_form(const Param& weight) {
  TESSERA_REQUIRE(form_of(weight) == nullptr,
                  Unsupported,
                  fmt::format("{} has two adapters", weight.info().name),
                  "give each weight one adapter");
}

}  // namespace

std::string low_rank_a(const std::string& module) {
  return module + kEndOfA;
}
std::string low_rank_b(const std::string& module) {
  return module + kEndOfB;
}
bool computes_adapters() {
  return adapters_off == 0;
}

bool is_low_rank(const ParamInfo& info) {
  const auto ends = {kEndOfA, kEndOfB, kEndOfMagnitude, kEndOfTableA, kEndOfTableB};
  return std::any_of(
      ends.begin(), ends.end(), [&](const char* end) { return info.name.ends_with(end); });
}

int part_dim(const ParamInfo& weight, const LowRankPart& part) {
  TESSERA_ASSERT(part.begin.size() + 1 == weight.shape.size() &&
                 part.sizes.size() == part.begin.size());
  int dim = -1;
  for (std::size_t d = 0; d < part.sizes.size(); ++d) {
    if (part.sizes[d] == weight.shape[d]) continue;
    TESSERA_REQUIRE(dim < 0 && weight.axes[d] == None,
                    Unsupported,
                    fmt::format("the outputs of {} lie scattered in {}", part.module, weight.name),
                    "leave it out of adapter.targets");
    dim = static_cast<int>(d);
  }
  return dim;
}

namespace {

/// Declares the parameters of the parts and returns the form that applies them.
std::shared_ptr<LowRankLinear> declare_parts(Params& params,
                                             const Param& weight,
                                             std::vector<LowRankPart> parts) {
  TESSERA_ASSERT(!parts.empty());
  const ParamInfo info = weight.info();
  const std::int64_t inputs = info.shape.back();
  int dim = -1;
  for (const LowRankPart& part : parts) {
    const int own = part_dim(info, part);
    TESSERA_REQUIRE(parts.size() == 1 || (own >= 0 && (dim < 0 || own == dim)),
                    Unsupported,
                    fmt::format("adapters of {} overlap", info.name),
                    "name each module once in adapter.targets");
    dim = own;
  }
  if (dim >= 0) {
    std::sort(parts.begin(), parts.end(), [&](const LowRankPart& one, const LowRankPart& other) {
      return one.begin[static_cast<std::size_t>(dim)] < other.begin[static_cast<std::size_t>(dim)];
    });
  }
  std::vector<LogicalAxis> lead(info.axes.begin(), info.axes.end() - 1);
  std::vector<LowRankParams> made;
  for (LowRankPart& part : parts) {
    const Params::Tags tags = {.without_prefix = true, .unit = info.unit, .role = kRole};
    LowRankParams one;
    one.a = params.add(part.module + kEndOfA,
                       {part.rank, inputs},
                       {None, info.axes.back()},
                       Init::uniform(1.0 / std::sqrt(static_cast<double>(inputs))),
                       tags);
    Params::Tags of_b = tags;
    const std::int64_t outputs = c10::multiply_integers(part.sizes);
    of_b.matrix_shape = {outputs, part.rank};
    Shape shape = part.sizes;
    shape.push_back(part.rank);
    std::vector<LogicalAxis> axes = lead;
    axes.push_back(None);
    one.b = params.add(part.module + kEndOfB, shape, axes, Init::zeros(), of_b);
    if (part.magnitude) {
      one.magnitude = params.add(part.module + kEndOfMagnitude,
                                 part.sizes,
                                 lead,
                                 Init::ones(),
                                 {.matrix_shape = {outputs},
                                  .without_prefix = true,
                                  .unit = info.unit,
                                  .role = Role::Vector});
    }
    one.part = std::move(part);
    made.push_back(std::move(one));
  }
  return std::make_shared<LowRankLinear>(std::move(made), dim);
}

std::shared_ptr<LowRankTable> declare_table_part(Params& params,
                                                 const Param& table,
                                                 const LowRankPart& part) {
  const ParamInfo info = table.info();
  TESSERA_ASSERT(info.shape.size() == 2);
  LowRankParams made;
  made.part = part;
  made.a = params.add(part.module + kEndOfTableA,
                      {info.shape[0], part.rank},
                      {info.axes[0], None},
                      Init::zeros(),
                      {.without_prefix = true, .role = info.role});
  made.b = params.add(part.module + kEndOfTableB,
                      {info.shape[1], part.rank},
                      {info.axes[1], None},
                      Init::normal(1.0),
                      {.without_prefix = true, .role = Role::Matrix});
  return std::make_shared<LowRankTable>(std::move(made));
}

}  // namespace

void add_low_rank(Params& params, Param& weight, std::vector<LowRankPart> parts) {
  require_no_form(weight);
  weight.extend(declare_parts(params, weight, std::move(parts)));
}

void add_low_rank_table(Params& params, Param& table, const LowRankPart& part) {
  require_no_form(table);
  table.extend(declare_table_part(params, table, part));
}

void add_low_rank_choice(Params& params, Param& weight, std::vector<LowRankChoice> adapters) {
  require_no_form(weight);
  std::vector<std::shared_ptr<const LowRankLinear>> forms;
  for (LowRankChoice& parts : adapters)
    forms.push_back(parts.empty() ? nullptr : declare_parts(params, weight, std::move(parts)));
  weight.extend(std::make_shared<LowRankChooser<LowRankLinear>>(std::move(forms)));
}

void add_low_rank_table_choice(Params& params, Param& table, std::vector<LowRankChoice> adapters) {
  require_no_form(table);
  std::vector<std::shared_ptr<const LowRankTable>> forms;
  for (const LowRankChoice& parts : adapters) {
    TESSERA_ASSERT(parts.size() <= 1);
    forms.push_back(parts.empty() ? nullptr : declare_table_part(params, table, parts.front()));
  }
  table.extend(std::make_shared<LowRankChooser<LowRankTable>>(std::move(forms)));
}

MergedAdapters::MergedAdapters() : outer_(merged_adapters) {
  merged_adapters = this;
}

MergedAdapters::~MergedAdapters() {
  merged_adapters = outer_;
}

const Param& MergedAdapters::weight(const ParamExtension& form,
                                    const std::function<std::unique_ptr<Param>()>& make) {
  std::unique_ptr<Param>& found = weights_[&form];
  if (found == nullptr) found = make();
  return *found;
}

WithoutAdapters::WithoutAdapters() {
  ++adapters_off;
}

WithoutAdapters::~WithoutAdapters() {
  --adapters_off;
}

}  // namespace tessera::nn
