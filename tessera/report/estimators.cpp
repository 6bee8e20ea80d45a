// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/estimators.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::report {
namespace {

constexpr double kBuffers = 1.5;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Computed in the order of DeepSpeed's arithmetic, so that the last digit is the same.
double as_double(std::int64_t value) {
  return static_cast<double>(value);
}
std::int64_t whole(double bytes) {
  return static_cast<std::int64_t>(bytes);
}

// A host holds at most 6 bytes per parameter for every rank of the job; the result must fit into 63
// bits.
void require_countable(const ModelSize& size, const Machines& machines) {
  constexpr double kMostCopies = 1e18;
  const double copies = as_double(std::max<std::int64_t>(size.total_params, 1)) *
                        as_double(machines.gpus_per_node) * as_double(machines.nodes);
  TESSERA_REQUIRE(machines.gpus_per_node >= 1 && machines.nodes >= 1 && copies <= kMostCopies,
                  Config,
                  fmt::format("{} parameters on {} hosts of {} ranks: more than there are bytes",
                              size.total_params,
                              machines.nodes,
                              machines.gpus_per_node),
                  "lower --num_nodes or --num_gpus_per_node");
}

const char* device(bool cpu) {
  return cpu ? "cpu " : "none";
}

EstimateRow zero3_row(
    const ModelSize& size, const Machines& machines, bool optimizer, bool param, bool zero_init) {
  const double params = as_double(size.total_params), per_node = as_double(machines.gpus_per_node);
  const double gpus = as_double(machines.gpus_per_node * machines.nodes);
  const double share = 1.0 / as_double(machines.nodes);
  EstimateRow row;
  row.gpu_bytes = 4 * size.largest_layer_params;
  double cpu = 0.0;
  if (optimizer) {
    const double states = param ? 18.0 : 16.0;
    if (!param) row.gpu_bytes += whole(2.0 * params / gpus);
    cpu = zero_init ? params * states * share * kBuffers
                    : params * std::max(4.0 * per_node, states * share) * kBuffers;
  } else {
    row.gpu_bytes += whole(18.0 * params / gpus);
    const double built = zero_init ? as_double(size.largest_layer_params) : params;
    cpu = built * 4.0 * per_node * kBuffers;
  }
  row.cpu_bytes = whole(cpu);
  row.options = fmt::format("offload_param={}, offload_optimizer={}, zero_init={}",
                            device(param),
                            device(optimizer),
                            zero_init ? 1 : 0);
  return row;
}

std::string rows_text(const std::vector<EstimateRow>& rows) {
  std::string out = "  per CPU  |  per GPU |   Options\n";
  for (const EstimateRow& row : rows) {
    std::string line = fmt::format(" {:7.2f}GB | {:6.2f}GB | {}",
                                   as_double(row.cpu_bytes) / kGiB,
                                   as_double(row.gpu_bytes) / kGiB,
                                   row.options);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace

ModelSize model_size(const nn::Model& model) {
  ModelSize out;
  std::set<std::string> shared;
  std::map<std::string, std::int64_t> layers;  // number of parameters that each layer owns
  for (const nn::BlockSpec& spec : model.blocks) {
    for (const auto& declared : nn::declared_by(spec)) {
      const ParamInfo& info = *declared;
      const bool first = !info.tied || shared.insert(info.name).second;
      if (!first) continue;
      out.total_params += info.numel();
      std::int64_t& own = layers[info.name.substr(0, info.name.rfind('.'))];
      own += info.numel();
      out.largest_layer_params = std::max(out.largest_layer_params, own);
    }
  }
  return out;
}

std::vector<EstimateRow> estimate_zero2(const ModelSize& size, const Machines& machines) {
  require_countable(size, machines);
  const double params = as_double(size.total_params);
  const std::int64_t gpus = machines.gpus_per_node * machines.nodes;
  const double offloaded = params * std::max(4.0 * as_double(gpus), 16.0) * kBuffers;
  const double copies = params * 4.0 * as_double(machines.gpus_per_node) * kBuffers;
  const std::int64_t working = 2 * size.total_params;
  const std::int64_t sharded = whole(18.0 * params / as_double(gpus));
  return {{whole(offloaded), working, fmt::format("offload_optimizer={}", device(true))},
          {whole(copies), working + sharded, fmt::format("offload_optimizer={}", device(false))}};
}

std::vector<EstimateRow> estimate_zero3(const ModelSize& size, const Machines& machines) {
  require_countable(size, machines);
  std::vector<EstimateRow> out;
  for (const auto& [optimizer, param] : {std::pair(true, true), {true, false}, {false, false}}) {
    for (const bool zero_init : {true, false})
      out.push_back(zero3_row(size, machines, optimizer, param, zero_init));
  }
  return out;
}

std::string estimate_text(int stage, const ModelSize& size, const Machines& machines) {
  TESSERA_ASSERT(stage == 2 || stage == 3);
  const auto millions = [](std::int64_t count) { return whole(as_double(count) / 1e6); };
  std::string software = fmt::format("{}M total params", millions(size.total_params));
  if (stage == 3)
    software += fmt::format(", {}M largest layer params", millions(size.largest_layer_params));
  return fmt::format(
             "Estimated memory needed for params, optim states and gradients for a:\n"
             "HW: Setup with {} {}, {} {} per node.\n"
             "SW: Model with {}.\n",
             machines.nodes,
             machines.nodes > 1 ? "nodes" : "node",
             machines.gpus_per_node,
             machines.gpus_per_node > 1 ? "GPUs" : "GPU",
             software) +
         rows_text(stage == 2 ? estimate_zero2(size, machines) : estimate_zero3(size, machines));
}

}  // namespace tessera::report
