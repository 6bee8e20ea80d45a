// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/activations.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/memory/device.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/probe_cache.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/tensor/upload.h"

namespace tessera::planner {
namespace {

// Margin for small tensors of a step and for the deviation of the probe; a prediction should never
// be below the need.
constexpr double kMargin = 1.03;

std::int64_t with_margin(std::int64_t bytes) {
  return static_cast<std::int64_t>(kMargin * static_cast<double>(bytes));
}

parallel::Probing probing_of(const Plan& plan) {
  return {.model = plan.model().resolved.model,
          .layout = plan.layout(),
          .rules = plan.model().rules,
          .sample = plan.data().sample};
}

/// Adds what rests on a disk, or in the memory of a device's host.
void add_stored(const Plan& plan, int stage, Activations& out) {
  const parallel::StoredActivations stored =
      parallel::stored_activations(probing_of(plan), stage, plan.model().probes.cache());
  const auto on_the_way = [&](int buffers) {
    return std::min<std::int64_t>(buffers, stored.tensors);
  };
  if (const auto buffers = plan.layout().host_activations) {
    out.training += stored.largest * on_the_way(*buffers);
    out.on_host = stored.most * pinned_bytes(stored.largest);
    return;
  }
  const std::int64_t slot = plan.layout().disk.in_blocks(stored.largest);
  constexpr std::int64_t kSlots = parallel::kActivationSlots;
  out.disk = (stored.most + kSlots - 1) / kSlots * kSlots * slot;
  out.moved = stored.tensors * slot;
  const std::int64_t buffers = on_the_way(plan.layout().activation_offload->buffers);
  if (memory::device_kind(plan.run().options.device) == DeviceKind::Cpu) {
    out.training += slot * buffers;
    return;
  }
  // On a device they are on their way to and from the host, which has rooms for these, and the
  // buffers of the disk.
  out.training += stored.largest * buffers;
  out.on_host = (slot + pinned_bytes(stored.largest)) * buffers + pinned_bytes(stored.largest);
}

}  // namespace

Probes::Probes() : cache_(std::make_shared<parallel::ProbeCache>()) {}

Probes& Probes::operator=(const Probes& other) {
  if (this != &other) cache_ = std::make_shared<parallel::ProbeCache>();
  return *this;
}

Activations predict_activations(const Plan& plan, int stage, std::span<const std::int64_t> sums) {
  Activations out;
  if (plan.data().sample.empty()) {
    out.unknown = "the tensors of a sample are known once the data is open";
    return out;
  }
  const parallel::Probing probing = probing_of(plan);
  parallel::ProbeCache& cache = plan.model().probes.cache();
  try {
    const parallel::StepActivations step = parallel::step_activations(probing, stage, cache, sums);
    out.training = with_margin(step.most);
    out.with_sums = step.with_sums + out.training - step.most;
    out.flow = step.flow;
    const std::int64_t probed = out.training;
    if (plan.layout().moves_activations()) add_stored(plan, stage, out);
    out.with_sums += out.training - probed;
    if (plan.run().eval.when().any() || !plan.data().options.test.empty())
      out.evaluation = with_margin(cache.evaluation(probing, plan.run().eval.micro_batch));
  } catch (const Error& error) {
    out.unknown = error.what();
    if (exit_code(error.kind()) == exit_code(Error::Kind::Config))
      out.refused = std::current_exception();
  } catch (const std::exception& error) {
    // Only the first part of ATen's message is used; the rest is advice for its own users.
    const std::string_view what = error.what();
    out.unknown = what.substr(0, std::min(what.find(". You may"), what.find('\n')));
    // A weight in tiles has no tensor that a layer other than linear and embedding could read.
    if (plan.model().rules.tiles) {
      out.refused = std::make_exception_ptr(
          Error(Error::Kind::Unsupported,
                fmt::format("tiling: a layer of the model reads one of the weights as a whole ({})",
                            out.unknown),
                "name other weights in the section tiling"));
    }
  }
  return out;
}

std::vector<parallel::BlockWork> predict_work(const Plan& plan) {
  TESSERA_ASSERT(!plan.data().sample.empty());
  return parallel::work_of_blocks(probing_of(plan));
}

std::vector<std::string> evaluated_terms(const Plan& plan) {
  if (plan.data().sample.empty()) return {};
  try {
    return parallel::terms_of(probing_of(plan), plan.run().eval.micro_batch);
  } catch (const std::exception&) {
    return {};  // predict_activations() says why
  }
}

void check_blocks(const Plan& plan) {
  if (const std::exception_ptr refused = predict_activations(plan, /*stage=*/0).refused)
    std::rethrow_exception(refused);
}

}  // namespace tessera::planner
