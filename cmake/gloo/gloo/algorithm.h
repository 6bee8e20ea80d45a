// SPDX-License-Identifier: Apache-2.0
// The wheel of torch has no headers of gloo, which ProcessGroupGloo.hpp includes. tessera calls
// gloo only through that class; these files declare what its declaration needs.
#pragma once
