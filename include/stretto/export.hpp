#pragma once
// Symbols are hidden unless they carry this mark: marked declarations are the interface.
#define STRETTO_API __attribute__((visibility("default")))
// Marks internals nested in an exported class: not part of the interface.
#define STRETTO_HIDDEN __attribute__((visibility("hidden")))
