// SPDX-License-Identifier: Apache-2.0
// Links whose engine is an optional library, in a shared library next to libtessera.so: MPI.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/registry.h"
#include "tessera/comm/transports/link_module.h"

namespace tessera::transports {
namespace {

using comm::LinkModule;

constexpr const char* kStart =
    "start the ranks with mpirun: mpirun -np 4 --map-by slot tessera train CONFIG; or remove "
    "run.transport";

/// Returns the path of the library, next to the one that contains this function.
std::filesystem::path module_path(const std::string& name) {
  Dl_info self{};
  const bool known =
      dladdr(reinterpret_cast<const void*>(&module_path), &self) != 0 && self.dli_fname;
  const std::filesystem::path folder =
      known ? std::filesystem::path(self.dli_fname).parent_path() : std::filesystem::path();
  return folder / fmt::format("libtessera_{}.so", name);
}

/// A text of the module about a failure.
class Why {
 public:
  operator comm::LinkModuleText() { return {text_.data(), text_.size()}; }  // NOLINT
  [[nodiscard]] std::string text() const { return text_.data(); }

 private:
  std::array<char, 512> text_{};
};

/// Opens libtessera_<name>.so. Throws Error{Unsupported} if this build has no such library, and
/// Error{Environment} if it or a library that it needs cannot be loaded.
const LinkModule& load(const std::string& name) {
  const std::filesystem::path path = module_path(name);
  std::error_code unknown;
  TESSERA_REQUIRE(
      std::filesystem::exists(path, unknown),
      Unsupported,
      fmt::format("run.transport: \"{}\": {} does not exist, so tessera was built without MPI",
                  name,
                  path.string()),
      "apt-get install libopenmpi-dev openmpi-bin && tools/build.sh release; or set run.transport "
      "to gloo");
  // Open MPI's own plugins look for its symbols among those of the process.
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  TESSERA_REQUIRE(handle != nullptr,
                  Environment,
                  fmt::format("run.transport: \"{}\": {}", name, dlerror()),
                  "apt-get install openmpi-bin; or set run.transport to gloo");
  const auto module =
      reinterpret_cast<comm::LinkModuleFunction>(dlsym(handle, comm::kLinkModuleSymbol));
  TESSERA_REQUIRE(module != nullptr && module()->version == comm::kLinkModuleVersion,
                  Environment,
                  fmt::format("{} is of another version of tessera", path.string()),
                  "cmake --install build/release");
  return *module();
}

class ModuleLink final : public comm::HostLink {
 public:
  ModuleLink(const LinkModule& module, void* link) : module_(module), link_(link) {}
  ~ModuleLink() override { module_.destroy(link_); }
  ModuleLink(const ModuleLink&) = delete;
  ModuleLink& operator=(const ModuleLink&) = delete;

  [[nodiscard]] std::string_view name() const override { return module_.name; }
  void send(int peer, std::span<const Bytes> messages) override {
    for (const Bytes message : messages) {
      Why why;
      require(module_.send(link_, peer, message.data(), message.size(), why), why);
    }
  }
  void receive(int peer, std::span<std::byte> message) override {
    Why why;
    require(module_.receive(link_, peer, message.data(), message.size(), why), why);
  }
  void close() noexcept override { module_.close(link_); }

 private:
  void require(bool good, const Why& why) const {
    TESSERA_REQUIRE(good, Comm, fmt::format("{}: {}", module_.name, why.text()), "");
  }

  const LinkModule& module_;
  void* link_;
};

/// Returns whether this process or one that started it is a process of MPI: of Open MPI, MPICH and
/// its kin, or of Slurm's plugins for them.
bool started_by_mpi() {
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
  return std::any_of(kVariables.begin(), kVariables.end(), [](const char* name) {
    return std::getenv(name) != nullptr;
  });
}

/// Throws Error{Config} if the ranks were not started as the module's engine requires.
std::unique_ptr<comm::HostLink> open_module_link(const std::string& name,
                                                 int rank,
                                                 int world_size) {
  const LinkModule& module = load(name);
  Why why;
  void* const link = module.open(rank, world_size, why);
  TESSERA_REQUIRE(
      link != nullptr, Config, fmt::format("run.transport: \"{}\": {}", name, why.text()), kStart);
  return std::make_unique<ModuleLink>(module, link);
}

/// Throws as far as it can be known in any process of this host, also in one that is not a rank.
void check_mpi() {
  TESSERA_REQUIRE(started_by_mpi(),
                  Config,
                  "run.transport: \"mpi\": mpirun has not started these ranks",
                  kStart);
  load("mpi");
}

std::unique_ptr<comm::HostLink> connect_mpi(int rank,
                                            const hosts::HostPart& part,
                                            hosts::StoreClient&,
                                            double) {
  return open_module_link("mpi", rank, part.world_size);
}

TESSERA_LINK("mpi", {.rank_of_choice = 2, .check = check_mpi, .connect = connect_mpi});

}  // namespace
}  // namespace tessera::transports
