// SPDX-License-Identifier: Apache-2.0
// tessera version: what this program is and what it was built with.
#include "tessera/cli/version.h"

#include <cstdio>
#include <string>
#include <vector>

#include <torch/headeronly/version.h>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/facts.h"
#include "tessera/ops/cpu/isa.h"

namespace tessera::cli {
namespace {

int version(const std::vector<std::string>& line) {
  Common common;
  Arguments arguments(
      "version",
      "Prints the version of tessera, of libtorch and of the compiler, and the kernel "
      "variant that this CPU runs.",
      {"tessera version", "tessera version --json"});
  arguments.common(common, /*has_json=*/true);
  if (!arguments.parse(line)) return kExitOk;
  const auto fact = [](const char* key, const std::string& text) {
    return Fact{key, key, text, json::Value::string(text)};
  };
  const Facts facts = {fact("tessera", kVersion),
                       fact("libtorch", TORCH_VERSION),
                       fact("compiler", __VERSION__),
                       fact("kernels", std::string(ops::name(ops::isa())))};
  std::fputs(common.json ? (as_json(facts).dump() + "\n").c_str() : as_table(facts).c_str(),
             stdout);
  return kExitOk;
}

TESSERA_COMMAND("version", "print the versions of tessera and of its libraries", version);

}  // namespace
}  // namespace tessera::cli
