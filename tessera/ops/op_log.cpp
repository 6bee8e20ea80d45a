// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/op_log.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/trace.h"
#include "tessera/ops/cost.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

thread_local OpLog* log_of_thread = nullptr;
thread_local int depth_of_thread = 0;

template <class Values>
std::vector<at::Tensor> tensors_of(const Values& values) {
  std::vector<at::Tensor> out;
  const auto take = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) out.push_back(tensor);
  };
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      take(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        take(tensor);
    }
  }
  return out;
}

/// An expanded tensor has more elements than memory.
double bytes_of(const at::Tensor& tensor) {
  return static_cast<double>(std::min(tensor.nbytes(), tensor.storage().nbytes()));
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// 2 x elements of the result x terms of each.
double flops_of(std::string_view name,
                const std::vector<at::Tensor>& in,
                const std::vector<at::Tensor>& out) {
  const bool adds =
      is_one_of(name, {"aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::addmv"});
  if (!adds && !is_one_of(name, {"aten::mm", "aten::bmm", "aten::matmul", "aten::linear"}))
    return 0;
  const std::size_t first = adds ? 1 : 0;
  if (in.size() <= first || in[first].dim() == 0 || out.empty()) return 0;
  return 2.0 * static_cast<double>(out[0].numel()) * static_cast<double>(in[first].size(-1));
}

OpWork work_of(std::string_view name,
               const std::vector<at::Tensor>& in,
               const std::vector<at::Tensor>& out) {
  OpWork work{.flops = flops_of(name, in, out)};
  if (work.flops > 0 && out[0].dim() > 0) {
    const auto terms =
        static_cast<std::int64_t>(work.flops / 2 / static_cast<double>(out[0].numel()));
    const std::int64_t columns = out[0].size(-1), rows = out[0].numel() / columns;
    work.shape_class = name == "aten::bmm" || name == "aten::baddbmm"
                           ? ShapeClass::Grouped
                           : class_of_product(rows, terms, columns);
    work.dtype = from_torch(out[0].scalar_type());
  }
  const bool in_place = name.ends_with('_');
  const bool is_view = !in_place && !in.empty() && !out.empty() && out[0].is_alias_of(in[0]);
  if (is_view || name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) {
    return work;
  }
  // A destination that is only written is not read.
  const bool overwrites = is_one_of(name, {"aten::copy_", "aten::zero_", "aten::fill_"});
  for (std::size_t i = overwrites ? 1 : 0; i < in.size(); ++i)
    work.bytes += bytes_of(in[i]);
  for (const at::Tensor& tensor : out)
    work.bytes += bytes_of(tensor);
  return work;
}

/// Measures an operation from beginning to end; libtorch provides its inputs only at the beginning.
struct Clock : at::ObserverContext {
  OpLog* log = nullptr;
  bool outermost = false;
  std::vector<at::Tensor> inputs;
  double begin = 0;
};

/// Autograd's own functions, within which the operations of a backward run.
bool is_engine(std::string_view name) {
  return name.starts_with("autograd::engine::");
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& op) {
  auto clock = std::make_unique<Clock>();
  clock->log = is_engine(op.name()) ? nullptr : log_of_thread;
  if (clock->log == nullptr) return clock;
  clock->outermost = OpLog::begin();
  if (clock->outermost) clock->inputs = tensors_of(op.inputs());
  clock->begin = now_s();
  return clock;
}

void on_end(const at::RecordFunction& op, at::ObserverContext* context) {
  const auto* clock = static_cast<Clock*>(context);
  if (clock == nullptr || clock->log == nullptr) return;  // none if the start callback has thrown
  const double seconds = now_s() - clock->begin;
  if (clock->outermost) {
    const std::string name = op.name();
    clock->log->add(name, work_of(name, clock->inputs, tensors_of(op.outputs())), seconds);
  }
  OpLog::end();
}

}  // namespace

OpLog::OpLog() : alive_(this, [](OpLog*) {}) {
  TESSERA_REQUIRE(log_of_thread == nullptr, Bug, "two logs of operations on one thread", "");
  log_of_thread = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OpLog::~OpLog() {
  at::removeCallback(handle_);
  log_of_thread = nullptr;
}

OpLog* OpLog::current() noexcept {
  return log_of_thread;
}

bool OpLog::begin() noexcept {
  return depth_of_thread++ == 0;
}

void OpLog::end() noexcept {
  --depth_of_thread;
}

void OpLog::add(const std::string& name, const OpWork& work, double seconds) {
  const std::lock_guard lock(mutex_);
  OpRow& row = rows_[{name, work.shape, work.dtype}];
  row.name = name;
  row.shape = work.shape;
  row.shape_class = work.shape_class;
  row.dtype = work.dtype;
  ++row.calls;
  row.seconds += seconds;
  row.flops += work.flops;
  row.bytes += work.bytes;
  if (!trace::heard()) return;
  const double now = now_s();
  trace::tell({.kind = trace::Kind::Operation,
               .name = name,
               .detail = work.shape,
               .begin = now - seconds,
               .end = now,
               .flops = work.flops,
               .bytes = work.bytes});
}

std::vector<OpRow> OpLog::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<OpRow> out;
  for (const auto& [key, row] : rows_)
    out.push_back(row);
  std::sort(
      out.begin(), out.end(), [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  return out;
}

ScopedOpLog::ScopedOpLog(const std::weak_ptr<OpLog>& log) noexcept
    : log_(log.lock()), before_(log_of_thread) {
  log_of_thread = log_.get();
}

ScopedOpLog::~ScopedOpLog() {
  log_of_thread = before_;
}

void OpScope::start(const char* name, OpWork work) {
  name_ = name;
  work_ = std::move(work);
  begin_ = now_s();
}

void OpScope::stop() {
  if (name_ != nullptr) log_->add(name_, work_, now_s() - begin_);
  OpLog::end();
}

}  // namespace tessera::ops
