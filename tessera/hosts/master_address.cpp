// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/master_address.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include <fmt/core.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/hosts/hostfile.h"

namespace tessera::hosts {
namespace {

std::string variable_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int port_of(const std::string& text, const std::string& source) {
  int port = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  TESSERA_REQUIRE(error == std::errc() && stop == text.data() + text.size() && port >= 1 &&
                      port <= 65535 - kMasterPorts,
                  Config,
                  fmt::format("{} is \"{}\" and no port", source, text),
                  fmt::format("choose 1 to {}", 65535 - kMasterPorts));
  return port;
}

/// Slurm runs several jobs on one host; each gets another port.
int slurm_port() {
  std::uint64_t job = 0;
  const std::string text = variable_of("SLURM_JOB_ID");
  std::from_chars(text.data(), text.data() + text.size(), job);
  return static_cast<int>(10000 + job * kMasterPorts % 50000);
}

std::optional<MasterAddress> azure() {
  if (const std::string node = variable_of("AZ_BATCH_MASTER_NODE"); !node.empty()) {
    // Its port belongs to Azure's own service.
    const std::size_t colon = node.find(':');
    return MasterAddress{node.substr(0, colon), kMasterPort, "AZ_BATCH_MASTER_NODE"};
  }
  if (const std::string node = variable_of("AZ_BATCHAI_MPI_MASTER_NODE"); !node.empty())
    return MasterAddress{node, kMasterPort, "AZ_BATCHAI_MPI_MASTER_NODE"};
  return std::nullopt;
}

std::optional<MasterAddress> slurm() {
  if (variable_of("SLURM_STEP_ID").empty()) return std::nullopt;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const std::string list = variable_of(name);
    if (!list.empty()) return MasterAddress{expand_hostlist(list).front(), slurm_port(), name};
  }
  return std::nullopt;
}

/// LSB_MCPU_HOSTS is `host1 4 host2 4`. Where jsrun starts the ranks the first host may be the
/// launch node, `batch1 1 host1 4 host2 4`, on which no rank runs: it alone has one slot.
std::optional<MasterAddress> lsf() {
  std::vector<std::string> words = text::split(variable_of("LSB_MCPU_HOSTS"), ' ');
  std::erase(words, "");
  if (words.empty()) return std::nullopt;
  const bool by_jsrun = !variable_of("JSM_NAMESPACE_RANK").empty();
  const bool has_launch_node = by_jsrun && words.size() >= 4 && words[1] == "1" && words[3] != "1";
  return MasterAddress{words[has_launch_node ? 2 : 0], kMasterPort, "LSB_MCPU_HOSTS"};
}

std::optional<MasterAddress> from_environment() {
  if (const std::string address = variable_of("MASTER_ADDR"); !address.empty())
    return MasterAddress{address, kMasterPort, "MASTER_ADDR"};
  if (const auto found = azure()) return found;
  if (const auto found = slurm()) return found;
  if (const std::string hosts = variable_of("SM_HOSTS"); !hosts.empty()) {
    const std::vector<std::string> names = sagemaker_hosts(hosts);
    if (!names.empty()) return MasterAddress{names.front(), kMasterPort, "SM_HOSTS"};
  }
  return lsf();
}

}  // namespace

std::optional<MasterAddress> find_master_address(const std::string& address,
                                                 std::optional<int> port) {
  std::optional<MasterAddress> found = from_environment();
  if (!address.empty()) {
    found = found.value_or(MasterAddress{});
    found->address = address;
    found->source = "--master_addr";
  }
  if (!found) return std::nullopt;
  TESSERA_REQUIRE(found->address.find_first_of(" \t\n/@") == std::string::npos,
                  Config,
                  fmt::format("{} is \"{}\" and no address", found->source, found->address),
                  "give the name or the address of the host of rank 0");
  if (const std::string text = variable_of("MASTER_PORT"); !text.empty())
    found->port = port_of(text, "MASTER_PORT");
  if (port) found->port = port_of(std::to_string(*port), "--master_port");
  return found;
}

std::vector<std::string> sagemaker_hosts(std::string_view text) {
  const auto refuse = [&] {
    throw Error(Error::Kind::Config,
                fmt::format("SM_HOSTS is \"{}\" and no list of hosts", text.substr(0, 200)),
                R"(expected ["algo-1","algo-2"])");
  };
  const std::string_view trimmed = text::trim(text);
  if (trimmed.size() < 2 || trimmed.front() != '[' || trimmed.back() != ']') refuse();
  std::vector<std::string> hosts;
  for (const std::string& part : text::split(trimmed.substr(1, trimmed.size() - 2), ',')) {
    const std::string_view item = text::trim(part);
    if (item.size() < 3 || item.front() != '"' || item.back() != '"') refuse();
    hosts.emplace_back(item.substr(1, item.size() - 2));
  }
  return hosts;
}

}  // namespace tessera::hosts
