package registration_test

const abs = `C:\`
