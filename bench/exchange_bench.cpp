// SPDX-License-Identifier: Apache-2.0
// Measures how fast two processes exchange messages over gloo, as libtorch contains it, and over
// UCX, for run_exchange.sh: both send and receive at the same time.
//
//   exchange_bench gloo|ucx RANK FOLDER [ADDRESS]
//
// The processes find each other through files in FOLDER; gloo listens on ADDRESS, and UCX on the
// interfaces of UCX_NET_DEVICES. Rank 0 prints one JSON line per size.
#define USE_C10D_GLOO
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#ifdef TESSERA_UCX
#include <ucp/api/ucp.h>
#endif

namespace {

constexpr int kRounds = 9;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Exchanges `bytes` in both directions.
using Exchange = std::function<void(const void* from, void* to, std::size_t bytes)>;

Exchange over_gloo(int rank, const std::string& folder, const std::string& address) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->threads = 1;
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(folder + "/store", 2), rank, 2, options);
  return [group, rank](const void* from, void* to, std::size_t bytes) {
    const auto tensor = [&](const void* data) {
      return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
    };
    std::vector<at::Tensor> in = {tensor(from)}, out = {tensor(to)};
    const auto sent = group->send(in, 1 - rank, 0), received = group->recv(out, 1 - rank, 0);
    sent->wait();
    received->wait();
  };
}

#ifdef TESSERA_UCX
void require(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  std::fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
  std::exit(1);
}

std::string other_address(int rank, const std::string& folder, const std::string& own) {
  const std::string mine = folder + "/address." + std::to_string(rank);
  std::ofstream(mine + ".tmp", std::ios::binary) << own;
  std::filesystem::rename(mine + ".tmp", mine);
  const std::string other = folder + "/address." + std::to_string(1 - rank);
  while (!std::filesystem::exists(other))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::ifstream file(other, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Exchange over_ucx(int rank, const std::string& folder) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  require(ucp_init(&params, nullptr, &context), "ucp_init");
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  require(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  require(ucp_worker_get_address(worker, &address, &length), "ucp_worker_get_address");
  const std::string other =
      other_address(rank, folder, std::string(reinterpret_cast<char*>(address), length));
  ucp_ep_params_t ep_params{};
  ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  ep_params.address = reinterpret_cast<const ucp_address_t*>(other.data());
  ucp_ep_h endpoint = nullptr;
  require(ucp_ep_create(worker, &ep_params, &endpoint), "ucp_ep_create");
  return [=](const void* from, void* to, std::size_t bytes) {
    ucp_request_param_t param{};
    void* const requests[] = {ucp_tag_recv_nbx(worker, to, bytes, 1, ~0UL, &param),
                              ucp_tag_send_nbx(endpoint, from, bytes, 1, &param)};
    for (void* const request : requests) {
      if (request == nullptr) continue;
      if (UCS_PTR_IS_ERR(request)) require(UCS_PTR_STATUS(request), "exchange");
      // Waits in the kernel, as gloo does: polling would take the processor from the other process
      // on a machine with few cores.
      while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        if (ucp_worker_progress(worker) == 0) require(ucp_worker_wait(worker), "wait");
      }
      require(ucp_request_check_status(request), "exchange");
      ucp_request_free(request);
    }
  };
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: exchange_bench gloo|ucx RANK FOLDER [ADDRESS]\n");
    return 2;
  }
  const std::string engine = argv[1], folder = argv[3], address = argc > 4 ? argv[4] : "127.0.0.1";
  const int rank = std::atoi(argv[2]);
  Exchange exchange;
  if (engine == "gloo") {
    exchange = over_gloo(rank, folder, address);
  } else {
#ifdef TESSERA_UCX
    exchange = over_ucx(rank, folder);
#else
    std::fprintf(stderr, "exchange_bench was built without UCX; fix: apt-get install libucx-dev\n");
    return 8;
#endif
  }
  for (const std::size_t mib : {1, 4, 16, 64}) {
    const std::size_t bytes = mib << 20;
    const std::vector<char> from(bytes, static_cast<char>(rank + 1));
    std::vector<char> to(bytes);
    std::vector<double> seconds;
    for (int round = 0; round <= kRounds; ++round) {  // the first one warms up
      const double begin = now_s();
      for (std::size_t sent = 0; sent < 64; sent += mib)
        exchange(from.data(), to.data(), bytes);
      if (round > 0) seconds.push_back((now_s() - begin) / (64.0 / static_cast<double>(mib)));
    }
    if (to.front() != 2 - rank || to.back() != 2 - rank) {
      std::fprintf(stderr, "the message is wrong\n");
      return 1;
    }
    std::sort(seconds.begin(), seconds.end());
    if (rank == 0) {
      const double gb = static_cast<double>(bytes) / 1e9;
      std::printf(R"({"engine": "%s", "mib": %zu, "gb_per_s": %.3f, "best": %.3f})"
                  "\n",
                  engine.c_str(),
                  mib,
                  gb / seconds[seconds.size() / 2],
                  gb / seconds.front());
      std::fflush(stdout);
    }
  }
  std::_Exit(0);  // the other process may still be in its last exchange: no destructor waits for it
}
