# Device code for these projects, without a HIP compiler: assembly and C that the test wrote into
# FIXTURES.

# Adds the wrappers, bundles and host code of one fixture to a target.
function(add_fat_code target fixture)
  set(directory "${FIXTURES}/${fixture}")
  target_sources(${target} PRIVATE "${directory}/device.s" "${directory}/host.c")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:ASM>:-Wa,-I${directory}>")
endfunction()
