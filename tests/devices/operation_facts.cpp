// SPDX-License-Identifier: Apache-2.0
#include "devices/operation_facts.h"

#include <algorithm>
#include <optional>
#include <set>

namespace tessera::test {

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& x : value.toTensorVector())
      out.push_back(x);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) {
      if (x) out.push_back(*x);
    }
  }
}

bool makes_the_host_wait(std::string_view name, const std::vector<at::Tensor>& reads) {
  static const std::set<std::string_view> kWaits = {"aten::_local_scalar_dense",
                                                    "aten::nonzero",
                                                    "aten::masked_select",
                                                    "aten::equal",
                                                    "aten::is_nonzero",
                                                    "aten::unique_dim",
                                                    "aten::_unique2",
                                                    "aten::repeat_interleave.Tensor"};
  if (kWaits.contains(name)) return true;
  // An index by a mask has as many elements as the mask has ones.
  return name == "aten::index" && std::any_of(reads.begin(), reads.end(), [](const auto& x) {
           return x.defined() && x.scalar_type() == at::kBool;
         });
}

}  // namespace tessera::test
