# The tests of kernels, products, quantization and training steps once more on the processors of STRETTO_CPU_LEVEL: results
# must be right where there is no AVX-512, and where there are no vectors. One process for each program and level; OpenBLAS
# chooses when it is loaded, by OPENBLAS_CORETYPE.
function(add_level_tests program level core filter)
  add_test(NAME levels.${level}.${program} COMMAND ${program} --gtest_filter=${filter})
  set_tests_properties(levels.${level}.${program} PROPERTIES LABELS levels TIMEOUT 300
    ENVIRONMENT "STRETTO_CPU_LEVEL=${level};OPENBLAS_CORETYPE=${core}")
endfunction()
