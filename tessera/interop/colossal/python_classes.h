// SPDX-License-Identifier: Apache-2.0
// Class names in the configurations of Python programs: dict(type="GPT2_exlarge").
#pragma once

#include <optional>
#include <string>

#include "tessera/config/json.h"

namespace tessera::interop {

/// The last part of a dotted name: "Adam" for "torch.optim.Adam".
std::string python_class_name(const std::string& dotted);
/// The preset of a model family with the class's name, compared case-insensitively and with "-" for
/// "_": "gpt2-exlarge" for "GPT2_exlarge".
std::optional<std::string> preset_of_python_class(const std::string& name);

/// Completes a configuration whose optimizer has the meaning of torch's class of that name: a
/// weight decay applies to all parameters, and in Adam through the gradient (L2). Keys that are
/// given stay.
void decay_as_torch(json::Value& config);

}  // namespace tessera::interop
